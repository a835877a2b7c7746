"""Create the objects that a config names by _target_, with the same form of error message for all of them.

cli/check_config.py has checked the packages of these names. This module looks the names up and calls them.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line


def make(key: str, target: str, arguments: Mapping[str, Any], **more: Any) -> Any:
    """Call a class or function by name: target(**arguments, **more). key: the config key of the target, for messages.
    Raises ConfigError if the name does not exist, or if the call does not accept these arguments or fails."""
    try:
        # `more` bypasses Hydra, which would convert lists of parameters into its own list type
        return instantiate({"_target_": target, "_partial_": True, **arguments})(**more)
    except (ImportError, InstantiationException, TypeError, ValueError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = first_line(cause)
        raise ConfigError(
            f"{key}={target} must be callable, but the call failed: {reason.rstrip('.')}. "
            "Hint: correct the name or its arguments; HYDRA_FULL_ERROR=1 shows where the call failed."
        ) from error


def open_arguments(target: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose name is a parameter of the target without a default, or with the default None."""
    try:
        parameters = inspect.signature(get_object(target)).parameters
    except Exception:  # make() reports the reason
        return {}
    is_open = (inspect.Parameter.empty, None)
    return {name: value for name, value in values.items() if name in parameters and parameters[name].default in is_open}
