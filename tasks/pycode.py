"""Byte-level language modelling of Python source: the standard library that every interpreter brings along."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from growbench.task import Data, Task

TRAIN = """
_collections_abc _markupbase _osx_support _py_abc _pydecimal _pyio _sitebuiltins _strptime _threading_local
_weakrefset argparse ast base64 bdb bisect bz2 cmd code codecs codeop colorsys compileall contextlib copy copyreg
dataclasses difflib dis doctest enum filecmp fileinput fnmatch fractions functools genericpath getopt getpass gettext
glob graphlib gzip hashlib hmac imaplib inspect io ipaddress linecache locale lzma mailbox mimetypes modulefinder
netrc ntpath numbers opcode operator optparse os pdb pickletools pkgutil platform plistlib poplib posixpath pprint
profile pstats pty py_compile pyclbr pydoc queue quopri random reprlib rlcompleter runpy sched secrets selectors
shelve shutil signal site smtplib socket socketserver ssl stat stringprep subprocess symtable tabnanny tarfile
tempfile threading timeit tokenize trace traceback tracemalloc types typing uuid wave weakref webbrowser zipapp
zipimport asyncio/base_events asyncio/base_futures asyncio/base_subprocess asyncio/base_tasks asyncio/coroutines
asyncio/events asyncio/format_helpers asyncio/futures asyncio/locks asyncio/proactor_events asyncio/protocols
asyncio/runners asyncio/selector_events asyncio/sslproto asyncio/staggered asyncio/subprocess asyncio/taskgroups
asyncio/tasks asyncio/timeouts asyncio/transports asyncio/trsock asyncio/unix_events asyncio/windows_events
asyncio/windows_utils collections/__init__ concurrent/futures/_base concurrent/futures/process
concurrent/futures/thread ctypes/__init__ ctypes/util dbm/__init__ dbm/dumb email/_encoded_words
email/_header_value_parser email/_parseaddr email/_policybase email/base64mime email/charset email/contentmanager
email/encoders email/errors email/feedparser email/generator email/header email/headerregistry email/iterators
email/parser email/policy email/quoprimime email/utils html/__init__ html/parser http/__init__ http/client
http/cookiejar http/server importlib/__init__ importlib/_abc importlib/_bootstrap importlib/_bootstrap_external
importlib/abc importlib/util importlib/metadata/__init__ json/__init__ json/encoder json/scanner json/tool
logging/__init__ logging/handlers multiprocessing/connection multiprocessing/context multiprocessing/forkserver
multiprocessing/heap multiprocessing/managers multiprocessing/process multiprocessing/queues multiprocessing/reduction
multiprocessing/resource_sharer multiprocessing/resource_tracker multiprocessing/shared_memory
multiprocessing/sharedctypes multiprocessing/spawn multiprocessing/synchronize multiprocessing/util re/__init__
re/_compiler re/_constants re/_parser sqlite3/dump tomllib/_re unittest/_log unittest/async_case unittest/case
unittest/loader unittest/main unittest/mock unittest/result unittest/runner unittest/signals unittest/util
urllib/error urllib/request urllib/response urllib/robotparser wsgiref/handlers wsgiref/headers wsgiref/simple_server
wsgiref/util wsgiref/validate xml/dom/__init__ xml/dom/domreg xml/dom/expatbuilder xml/dom/minidom xml/dom/xmlbuilder
xml/etree/ElementInclude xml/etree/ElementPath xml/etree/ElementTree xml/sax/__init__ xml/sax/_exceptions
xml/sax/expatreader xml/sax/handler xml/sax/saxutils xml/sax/xmlreader xmlrpc/client xmlrpc/server zoneinfo/__init__
zoneinfo/_common zoneinfo/_tzpath zoneinfo/_zoneinfo
"""
VALID = """
asyncio/queues asyncio/streams calendar configparser csv email/message ftplib heapq http/cookies json/decoder
logging/config multiprocessing/pool pickle shlex statistics textwrap tomllib/_parser unittest/suite urllib/parse
xml/dom/pulldom
"""


@dataclass(frozen=True, kw_only=True)
class PyCode(Task):
    """Bytes of the Python standard library's own sources: on every machine, nothing to download.

    Split: by file, 20 of the listed modules for validation (0.6 MB), the other 242 to train on (6 MB). They exist as
    pure Python in CPython 3.11 to 3.14 and are read, never imported; no tests, no tables of data. Line ends are \\n
    on every system. Source: the running interpreter, so the text, and with it the fingerprint, differs between Python
    versions: compare results of one version. Licence: PSF-2.0; nothing is redistributed.
    """

    def load(self, cache: Path) -> Data:
        """Return both streams; ValueError if the interpreter lacks a module's source. `cache` is not used."""
        library = Path(sysconfig.get_path("stdlib"))
        return Data.from_bytes(_read(library, TRAIN.split()), _read(library, VALID.split()))


def _read(library: Path, modules: list[str]) -> bytes:
    paths = [library / f"{module}.py" for module in modules]
    if absent := [str(path.relative_to(library)) for path in paths if not path.is_file()]:
        raise ValueError(
            f"the task pycode needs the standard library's sources in {library}, which lacks {', '.join(absent[:3])}"
            f"{' and others' * (len(absent) > 3)}: use CPython 3.11 to 3.14 with its full library, "
            "or another task, such as text:PATH"
        )
    return b"".join(path.read_bytes().replace(b"\r\n", b"\n") for path in paths)
