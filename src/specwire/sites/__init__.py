"""Where EAGLE-3 passes through SGLang's source: found by what the code binds, in any release.

The matchers that probes are written with are this package's face, loaded at first use: LibCST is dear to import, and
listing the probes needs none of it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specwire.sites.matchers import *  # noqa: F403
else:

    def __getattr__(name):
        return getattr(importlib.import_module("specwire.sites.matchers"), name)
