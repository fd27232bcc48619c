"""From a capture and a golden to the cause: evidence, judgement, and how it is shown."""
