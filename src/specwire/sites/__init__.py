"""Where EAGLE-3 passes through SGLang's source: found by what the code binds, in any release."""
