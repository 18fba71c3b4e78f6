"""What the client of the hub raises, as built-in errors that say what to do."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from keras_attn.files.hub_names import parse_hub_name

_LONGEST_REASON = 300
# Too slow, too many requests: the same may be right later.
_LATER = (408, 429)


@contextlib.contextmanager
def in_our_words(name: str, argument: str = "folder") -> Iterator[None]:
    """Turns the client's errors into built-in ones that say what to do.

    Args:
        name: Of the repository, `hf://owner/name[@revision]`.
        argument: What the caller calls it.

    Raises:
        ValueError, FileNotFoundError, PermissionError, ConnectionError: As
            `local_folder`.
    """
    from httpx2 import HTTPError
    from huggingface_hub import constants, errors

    received = f"Received: {argument}={name!r}"
    try:
        yield
    except errors.HFValidationError as error:
        raise ValueError(
            f"`{argument}` must be a name that the hub allows. {received}, and {error}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"`{argument}` must name a branch, a tag or a commit of the repository "
            f"after its @. {received}"
        ) from error
    except errors.GatedRepoError as error:
        repository, _ = parse_hub_name(name)
        raise PermissionError(
            f"`{argument}` is only for those who agree to its terms: do so on "
            f"{constants.ENDPOINT}/{repository}, and log in by `hf auth login` or by "
            f"HF_TOKEN. {received}"
        ) from error
    except errors.HfHubHTTPError as error:
        raise _of_status(error, argument, received) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.RevisionResolutionError,
        errors.FileMetadataError,
        errors.XetDownloadError,
        json.JSONDecodeError,
        HTTPError,
        ConnectionError,
    ) as error:
        if constants.is_offline_mode():
            raise ConnectionError(
                f"`{argument}` is not, or not wholly, in the cache, and HF_HUB_OFFLINE "
                f"is set: load it once without. {received}"
            ) from error
        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError):
            raise _of_status(cause, argument, received) from error
        raise _broken(cause or error, received) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        # A file shorter than the hub said has no class of its own.
        if "Consistency check" not in str(error):
            raise
        raise _broken(error, received) from error


def _of_status(error: Any, argument: str, received: str) -> OSError | ValueError:
    """The error for an answer of the hub that is none of the particular ones."""
    status = error.response.status_code
    if status in (401, 403):
        return PermissionError(
            f"`{argument}` must be a repository that you may use: it does not exist, "
            "or is private, or is another's; log in by `hf auth login` or by HF_TOKEN. "
            f"{received}, and the hub answered {status}"
        )
    if status == 404:
        return FileNotFoundError(
            f"`{argument}` must name a repository of the hub. {received}, which does "
            "not exist, or is private"
        )
    if 400 <= status < 500 and status not in _LATER:
        reason = " ".join(f"{error.server_message or error}".split())[:_LONGEST_REASON]
        return ValueError(
            f"`{argument}`: the hub refused the request. {received}, and the hub "
            f"answered {status}: {reason}"
        )
    return ConnectionError(
        "The hub could not answer; try again later, or set HF_HUB_OFFLINE=1 to use "
        f"what is in the cache. {received}, and the hub answered {status}"
    )


def _broken(error: BaseException, received: str) -> ConnectionError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
    return ConnectionError(
        "The hub cannot be reached, or a transfer broke off; files that are complete "
        f"are kept, so try again. {received}, and {reason}"
    )
