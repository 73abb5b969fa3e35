"""What of a text may be shown: no secret of a URL, no character that steers a terminal.

A URL's user and password, its query and its fragment are secrets; of a setting whose name ends in `url`, such as a
webhook's, the path is one too. Knows nothing of who shows what.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence

MASK = "***"

URL = re.compile(r"[A-Za-z][\w+.:-]*://(?:[^\s'\"<>]|['\"](?=\S*@))+(?<![:;,.)])")
USERINFO = re.compile(r"//(?:[^/?#]*|[^/?#@]*:[^?#]*)@")  # a password may hold a slash, as AWS keys do
SECRET_QUERY = re.compile(
    r"([?&;#][\w.-]*(?:token|sig|signature|password|passwd|secret|key|credential)[\w.-]*=)[^\s&;#'\"<>]+", re.IGNORECASE
)
SECRET_NAME = re.compile(r"(^|_)(token|password|secret|api_key|access_key)$")
URL_NAME = re.compile(r"(^|_)url$")

HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, format (bidi), half characters, line separators


def printable(text: str) -> str:
    """Text from data or drivers as it may reach a terminal: one line, no control or format character."""
    if text.isprintable():
        return text
    return "".join(" " if unicodedata.category(each) in HIDDEN_CATEGORIES else each for each in text)


def hide_secrets(url: str) -> str:
    """A path as it is; a URL without user, password, query and fragment, each marked by `MASK`.

    >>> hide_secrets("https://me:pass@host/x.parquet?sig=abc"), hide_secrets("s3://bucket/part-?.parquet")
    ('https://***@host/x.parquet?***', 's3://bucket/part-?.parquet')
    """
    if "://" not in url:
        return url
    hidden = USERINFO.sub(f"//{MASK}@", url)
    is_web = re.search(r"\bhttps?://", hidden) is not None
    return re.sub(r"([?#]).+" if is_web else r"([?#])[^?#]*=.*", rf"\1{MASK}", hidden, count=1)


def hide_url_secrets(text: str) -> str:
    """A text with every URL in it as `hide_secrets` leaves it."""
    if "://" not in text:
        return text
    return SECRET_QUERY.sub(rf"\1{MASK}", URL.sub(lambda found: hide_secrets(found[0]), text))


def hide_setting_secrets(value: object, name: str = "") -> object:
    """A setting, or a table or list of them, as it may be stored; `name` is its key.

    >>> hide_setting_secrets({"alert_url": "https://host/T0/B0/abc", "hf_token": "abc", "queries": "q.parquet"})
    {'alert_url': 'https://host/***', 'hf_token': '***', 'queries': 'q.parquet'}
    """
    if isinstance(value, Mapping):
        return {key: hide_setting_secrets(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, str):
        return _shown_setting(value, name)
    if isinstance(value, Sequence):
        return [hide_setting_secrets(inner, name) for inner in value]
    return value


def _shown_setting(value: str, name: str) -> str:
    if SECRET_NAME.search(name):
        return MASK
    if "://" not in value:
        return value
    hidden = hide_secrets(value) if re.match(r"[\w+.:-]+://", value) else hide_url_secrets(value)
    return re.sub(r"(://[^/?#]*).+", rf"\1/{MASK}", hidden) if URL_NAME.search(name) else hidden
