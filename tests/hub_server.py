"""A Hugging Face Hub on this machine, in memory, with faults.

It answers what the client asks for to download (commits, the tree of a commit, what is
known of a file, files and parts of them) and to upload (repositories, commits of small
files).
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import constants
from huggingface_hub.utils import close_session

# These files are of Git LFS: their checksum is SHA-256.
LARGE = (".safetensors", ".h5", ".bin", ".keras")


@dataclass
class Hub:
    """What the server has, and what goes wrong.

    Attributes:
        commits: The files, name to bytes, by repository and commit.
        branches: The commit by repository and branch.
        token: What a request must have; None = nothing.
        gated: Repositories whose files are refused even so.
        status: What every request is answered with; None = what it asks for.
        most: The bytes of a file after which the connection breaks off.
        breaks: How many times that happens.
        short: Bytes that are left out at the end of each file.
        wrong: Whether a byte of each file is another one.
        stalls: Whether a transfer waits after `most` bytes until `resume` is set.
        log: Method and path of each request.
        address: Where it is served.
    """

    commits: dict = field(default_factory=dict)
    branches: dict = field(default_factory=dict)
    token: str | None = None
    gated: set = field(default_factory=set)
    status: int | None = None
    most: int = 0
    breaks: int = 0
    short: int = 0
    wrong: bool = False
    stalls: bool = False
    resume: threading.Event = field(default_factory=threading.Event)
    stalled: threading.Event = field(default_factory=threading.Event)
    log: list = field(default_factory=list)
    address: str = ""

    def add(self, repository, files, branch="main"):
        """Commits files, a dictionary or a folder, and returns the commit."""
        if not isinstance(files, dict):
            found = (path for path in files.rglob("*") if path.is_file())
            files = {x.relative_to(files).as_posix(): x.read_bytes() for x in found}
        content = repr(sorted(files.items())).encode()
        commit = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        self.commits.setdefault(repository, {})[commit] = dict(files)
        self.branches.setdefault(repository, {})[branch] = commit
        return commit

    def files(self, repository, revision="main"):
        """Commit and files of a revision."""
        commit = self.branches[repository].get(revision, revision)
        return commit, self.commits[repository].get(commit)

    def transfers(self):
        """The names of the files that were sent."""
        return [path.rpartition("/")[2] for method, path in self.log if method == "GET"]


def git_hash(content):
    """Git's name for a file of this content."""
    head = b"blob %d\0" % len(content)
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


def entry(name, content):
    """The entry of a file in a tree."""
    found = {"type": "file", "path": name, "size": len(content)}
    if not name.endswith(LARGE):
        return {**found, "oid": git_hash(content)}
    digest = hashlib.sha256(content).hexdigest()
    lfs = {"oid": digest, "size": len(content), "pointerSize": 130}
    return {**found, "oid": git_hash(digest.encode()), "lfs": lfs}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content_Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value, status=200, **headers):
        body = json.dumps(value).encode()
        self.answer(status, body, Content_Type="application/json", **headers)

    def fail(self, status, code):
        self.answer_json({"error": code}, status, X_Error_Code=code)

    def is_refused(self):
        """Answers a request that fails whatever it asks for."""
        if "harness" not in self.path:  # The client asks who calls it, once.
            self.hub.log.append((self.command, self.path))
        given = self.headers.get("Authorization")
        if self.hub.status is not None:
            self.answer(self.hub.status, b"<p>As told.</p>", Content_Type="text/html")
        elif self.hub.token is not None and given != f"Bearer {self.hub.token}":
            # As the hub answers whether or not there is such a repository.
            self.answer_json({"error": "Invalid username or password."}, 401)
        else:
            return False
        return True

    def do_HEAD(self):  # noqa: N802
        self.do_GET()

    def do_GET(self):  # noqa: N802
        if self.is_refused():
            return
        path = urlsplit(self.path).path
        api = re.fullmatch(
            r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path
        )
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        asked = api or file
        if not asked or asked[1] not in self.hub.commits:
            return self.fail(404, "RepoNotFound")
        # A branch may have a slash, which is quoted.
        revision = unquote((asked[3] if api else asked[2]) or "main")
        commit, files = self.hub.files(asked[1], revision)
        if files is None:
            return self.fail(404, "RevisionNotFound")
        if file:
            if asked[1] in self.hub.gated:
                return self.fail(403, "GatedRepo")
            name = unquote(file[3])
            return self.answer_file(commit, name, files.get(name))
        if asked[2] == "tree":
            return self.answer_json([entry(*each) for each in files.items()])
        siblings = [{"rfilename": name} for name in files]
        self.answer_json({"id": asked[1], "sha": commit, "siblings": siblings})

    def answer_file(self, commit, name, content):
        if content is None:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        found = entry(name, content)
        start = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
        part = content[start:]
        if self.hub.wrong:
            part = bytes([part[0] ^ 1]) + part[1:]
        if self.command == "GET" and self.hub.short:
            part = part[: -self.hub.short]
        headers = {
            "ETag": f'"{found.get("lfs", found)["oid"]}"',
            "X_Repo_Commit": commit,
            "Accept_Ranges": "bytes",
            "Content_Length": len(part),
        }
        if start:
            last = len(content) - 1
            headers["Content_Range"] = f"bytes {start}-{last}/{len(content)}"
        status = 206 if start else 200
        is_cut = self.command == "GET" and len(part) > self.hub.most > 0
        if is_cut and self.hub.stalls:
            self.answer(status, part[: self.hub.most], **headers)
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.resume.wait(60)
            self.close_connection = True
        elif is_cut and self.hub.breaks:
            self.hub.breaks -= 1
            self.answer(status, part[: self.hub.most], **headers)
            self.close_connection = True
        else:
            self.answer(status, part, **headers)

    def do_POST(self):  # noqa: N802
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.is_refused():
            return
        path = unquote(urlsplit(self.path).path)
        here = f"http://{self.headers['Host']}"
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name in self.hub.commits:
                url = f"{here}/{name}"
                return self.answer_json({"error": "exists", "url": url}, 409)
            self.hub.add(name, {})
            return self.answer_json({"url": f"{here}/{name}", "name": name})
        if path == "/api/validate-yaml":
            return self.answer_json({"errors": [], "warnings": []})
        asked = re.fullmatch(
            r"/api/models/([^/]+/[^/]+)/(preupload|commit|paths-info)/([^/]+)", path
        )
        if not asked:
            return self.fail(404, "RepoNotFound")
        if asked[2] == "paths-info":
            _, files = self.hub.files(asked[1], asked[3])
            names = parse_qs(body.decode())["paths"]
            return self.answer_json([entry(name, files[name]) for name in names])
        if asked[2] == "preupload":
            modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            files = json.loads(body)["files"]
            return self.answer_json(
                {"files": [{"path": each["path"], **modes} for each in files]}
            )
        _, files = self.hub.files(asked[1], asked[3])
        files = dict(files)
        for line in body.decode().splitlines():
            each = json.loads(line)
            if each["key"] == "file":
                content = base64.b64decode(each["value"]["content"])
                files[each["value"]["path"]] = content
            elif each["key"] == "deletedFile":
                del files[each["value"]["path"]]
        commit = self.hub.add(asked[1], files, asked[3])
        self.answer_json(
            {
                "success": True,
                "commitOid": commit,
                "commitUrl": f"{here}/{asked[1]}/commit/{commit}",
                "hookOutput": "",
            }
        )


@contextlib.contextmanager
def serving(hub):
    """Serves a hub on loopback; yields its address."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        hub.resume.set()
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def asked(monkeypatch, tmp_path):
    """An empty hub that the client asks, with an empty cache.

    Args:
        monkeypatch: The fixture.
        tmp_path: Where the cache is.
    """
    # The client's retries and parts, in no time and in bytes.
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 64)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    hub = Hub()
    with serving(hub) as hub.address:
        ask(monkeypatch, hub.address)
        yield hub
    close_session()


def ask(monkeypatch, address, offline=False):
    """Lets the client ask another address, or none at all."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    url = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
    close_session()
