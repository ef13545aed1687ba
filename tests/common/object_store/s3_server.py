"""A real S3 server (moto) with a way in front of it that injects faults, for tests. Listens on loopback.

    s3_server.py PORT BUCKET [ADDRESS]    writes its port into the file PORT when it listens and has the bucket BUCKET;
                                          listens on ADDRESS instead

It refuses what real S3 refuses and moto lets pass: a wrong signature (recomputed by botocore), keys that have expired
or lack their session token, a body that does not have its SHA-256 or CRC-32C. It lets one request at a time through,
since moto's conditional puts are not atomic. It is STS, too: for the token IDENTITY moto gives temporary keys.

Faults are set by POST /-/faults?..., and hold until the next such call:

    next=METHOD[~TEXT]:FAULT,...  the next request of this method (or *; STS), to a path with this text, has the fault;
                              in turn
    seed=N&rate=R[&kinds=FAULT,...]   each request has a fault with probability R, as the seed decides
    keys_seconds=N            temporary keys that are given from now on say that they expire after so many seconds
    expire=1                  the store refuses all temporary keys that there are, as expired
    ahead=N&drifts=1          the store's clock is so many seconds ahead of this machine's; and is so again, from where it
                              was, after each request that it refuses for that

`500`, `503`, `409`, `damaged` (400 BadDigest): the answer, and nothing is done. `cut`: the connection is cut, and
nothing is done. `lost`, `lost500`: all is done, and the connection is cut, or the answer is 500. `truncated`: the
answer's body is cut in half. `slow`: the answer comes late. `stalled`: the answer does not come. `paused`: it comes
after PAUSE seconds. `blanks`: as `paused`, with blanks in between, as at the end of an upload in parts. `dribble`: the
answer's body comes byte by byte, for ever. `error200`: the head says 200, the body InternalError, and nothing is done.
`taken200`: as `error200`, with PreconditionFailed. `late`: the connection is cut, and all is done later: some requests after,
or at the next call of /-/faults. `held`: as `late`, but only at that call. `repeated`: all is done, the connection is
cut, and all is done again at that call. `unconditional`: all is done without looking at the condition of a put.
GET /-/counts: how often each fault was injected, and temporary keys were given (JSON).
"""
import base64
import collections
import datetime
import hashlib
import http.server
import json
import os
import random
import re
import socket
import sys
import threading
import time
import urllib.parse

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.test import EnvironBuilder, run_wsgi_app

KEY_ID, SECRET_KEY = "weir-test", "weir-secret/+="
SEEDED = ("500", "503", "409", "damaged", "cut", "lost", "lost500", "truncated", "slow", "late")
# How many requests may come between a late request's cut and its effect.
LATEST = 12
PAUSE = 2.5
IDENTITY = "the-job"


def crc32c_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


TABLE = crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return base64.b64encode((crc ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


class Faults:
    """Decides which request has which fault. Guarded by the server's lock."""

    def __init__(self):
        self.planned, self.random, self.rate, self.kinds = [], None, 0.0, SEEDED
        self.counts = collections.Counter()

    def set(self, query):
        entries = query.get("next", [""])[0].split(",")
        self.planned = [re.fullmatch(r"(\*|[A-Z]+)(?:~(.*))?:(\w+)", entry).groups() for entry in entries if entry]
        self.rate = float(query.get("rate", ["0"])[0])
        self.kinds = query["kinds"][0].split(",") if "kinds" in query else SEEDED
        self.random = random.Random(int(query.get("seed", ["0"])[0]))

    def next(self, method, path):
        fault = None
        for entry in self.planned:
            if entry[0] in (method, "*") and (entry[1] or "") in path:
                self.planned.remove(entry)
                fault = entry[2]
                break
        if fault is None and self.rate > 0 and self.random.random() < self.rate:
            fault = self.random.choice(self.kinds)
        if fault is not None:
            self.counts[fault] += 1
        return fault


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address, bucket):
        super().__init__((address, 0), Handler)
        self.lock = threading.Lock()
        self.faults = Faults()
        self.late = []  # [requests to go, request]
        self.keys_seconds = 3600.0
        self.ahead, self.drift = 0.0, 0.0
        # By id: secret, session token or None, whether they have expired.
        self.keys = {KEY_ID: [SECRET_KEY, None, False]}
        # moto is called in this process: a second server behind this one would take most of a test's time.
        self.s3, self.sts = create_backend_app("s3"), create_backend_app("sts")
        status, _, content = self.forward(("PUT", f"/{bucket}", {"Host": "s3.amazonaws.com"}, b""))
        if status != 200:
            raise RuntimeError(f"bucket {bucket}: {status} {content.decode()}")

    def forward(self, request, app=None):
        """moto's (status, headers, body)."""
        method, target, headers, body = request
        path, _, query = target.partition("?")
        environ = EnvironBuilder(path=path, query_string=query, method=method, headers=headers, data=body).get_environ()
        content, status, answered = run_wsgi_app(app or self.s3, environ)
        return int(status.split()[0]), list(answered), b"".join(content)

    def now(self):
        return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.ahead)

    def release(self, all_of_them):
        for entry in list(self.late):
            entry[0] -= 1
            if all_of_them or entry[0] <= 0:
                self.late.remove(entry)
                self.forward(entry[1])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def control(self, body):
        url = urllib.parse.urlsplit(self.path)
        with self.server.lock:
            if url.path == "/-/faults":
                self.server.release(True)
                query = urllib.parse.parse_qs(url.query)
                self.server.faults.set(query)
                self.server.faults.counts.clear()
                self.server.ahead = float(query.get("ahead", ["0"])[0])
                self.server.drift = self.server.ahead if "drifts" in query else 0.0
                self.server.keys_seconds = float(query.get("keys_seconds", ["3600"])[0])
                for keys in self.server.keys.values():
                    keys[2] = keys[2] or ("expire" in query and keys[1] is not None)
            self.answer(200, [], json.dumps(self.server.faults.counts).encode())

    def answer(self, status, headers, body, send=None):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date"):
                self.send_header(name, value)
        self.send_header("Date", self.server.now().strftime("%a, %d %b %Y %H:%M:%S GMT"))
        length = [value for name, value in headers if name.lower() == "content-length"]
        bare = self.command == "HEAD"
        self.send_header("Content-Length", length[0] if bare and length else str(len(body)))
        self.end_headers()
        if not bare:
            self.wfile.write(body if send is None else body[:send])

    def complain(self, status, code, text):
        xml = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>"
        self.answer(status, [("Content-Type", "application/xml")], xml.encode())

    def piecewise(self, pieces, seconds):
        """An answer whose body comes in pieces, with so much time before each."""
        self.send_response_only(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for piece in pieces:
                time.sleep(seconds)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass  # the client waits no longer

    def give_keys(self, body):
        """Answers as STS: (status, headers, body)."""
        asked = urllib.parse.parse_qs(body.decode())
        if asked["WebIdentityToken"] != [IDENTITY]:
            return 400, [], (b"<ErrorResponse><Error><Code>InvalidIdentityToken</Code>"
                             b"<Message>no such token</Message></Error></ErrorResponse>")
        headers = {"Content-Type": self.headers["Content-Type"], "Host": "sts.amazonaws.com"}
        status, answered, content = self.server.forward(("POST", "/", headers, body), self.server.sts)
        xml = content.decode()
        found = [re.search(f"<{name}>(.*?)</{name}>", xml).group(1)
                 for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
        self.server.keys[found[0]] = [found[1], found[2], False]
        self.server.faults.counts["keys"] += 1
        expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.server.keys_seconds)
        xml = re.sub("<Expiration>.*?<", f"<Expiration>{expires.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}<", xml)
        return status, answered, xml.encode()

    def cut(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def why_refused(self, body):
        """What S3 would say of the request itself: (status, code, text), or None."""
        sent = self.headers.get("Authorization", "")
        if not sent.startswith("AWS4-HMAC-SHA256 "):
            return 403, "AccessDenied", "the request is not signed"
        fields = dict(part.strip().split("=", 1) for part in sent[len("AWS4-HMAC-SHA256 "):].split(","))
        key_id, _, region, service, _ = fields["Credential"].split("/")
        if key_id not in self.server.keys:
            return 403, "InvalidAccessKeyId", "no such key id"
        secret, token, expired = self.server.keys[key_id]
        if self.headers.get("x-amz-security-token") != token:
            return 403, "InvalidToken", "the session token is not that of the keys"
        if expired:
            return 400, "ExpiredToken", "the keys have expired"
        request = AWSRequest(self.command, f"http://{self.headers['Host']}{self.path}")
        for name in fields["SignedHeaders"].split(";"):
            request.headers[name] = self.headers[name]
        for name in ("host", "x-amz-content-sha256", "x-amz-date"):
            if name not in fields["SignedHeaders"].split(";"):
                return 403, "AccessDenied", f"{name} is not signed"
        # botocore wants the query's parameters apart.
        request.context["timestamp"] = self.headers["x-amz-date"]
        now = self.server.now()
        then = datetime.datetime.strptime(self.headers["x-amz-date"] + "+0000", "%Y%m%dT%H%M%SZ%z")
        if abs((now - then).total_seconds()) > 900:
            self.server.faults.counts["skewed"] += 1
            return 403, "RequestTimeTooSkewed", "the clocks differ"
        auth = S3SigV4Auth(Credentials(key_id, secret, token), service, region)
        canonical = auth.canonical_request(request)
        signature = auth.signature(auth.string_to_sign(request, canonical), request)
        if signature != fields["Signature"]:
            return 403, "SignatureDoesNotMatch", canonical.replace("\n", "|").replace("&", "+")
        if hashlib.sha256(body).hexdigest() != self.headers["x-amz-content-sha256"]:
            return 400, "XAmzContentSHA256Mismatch", "the body has another hash"
        # In Python this takes a second for each MB.
        claimed = self.headers.get("x-amz-checksum-crc32c")
        if claimed is not None and len(body) < 300_000 and claimed != crc32c(body):
            return 400, "BadDigest", "the body has another CRC-32C"
        return None

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path.startswith("/-/"):
            return self.control(body)
        with self.server.lock:
            self.server.release(False)
            sts = body.startswith(b"Action=AssumeRoleWithWebIdentity&")
            refused = None if sts else self.why_refused(body)
            if refused is not None:
                self.complain(*refused)
                self.server.ahead += self.server.drift if refused[1] == "RequestTimeTooSkewed" else 0
                return None
            fault = self.server.faults.next("STS" if sts else self.command, self.path)
            if fault in ("409", "damaged") and self.command not in ("PUT", "POST"):
                fault = None  # S3 says this of data alone
            if fault == "500":
                return self.complain(500, "InternalError", "injected")
            if fault == "503":
                return self.complain(503, "SlowDown", "injected")
            if fault == "409":
                return self.complain(409, "ConditionalRequestConflict", "injected")
            if fault == "damaged":
                return self.complain(400, "BadDigest", "injected")
            if fault == "cut":
                return self.cut()
            headers = {name: value for name, value in self.headers.items()
                       if name.lower() not in ("connection", "expect")}
            if fault == "unconditional":
                headers = {name: value for name, value in headers.items() if not name.lower().startswith("if-")}
            request = self.command, self.path, headers, body
            if fault in ("late", "held"):
                after = self.server.faults.random.randint(1, LATEST) if fault == "late" else sys.maxsize
                self.server.late.append([after, request])
                return self.cut()
            if fault in ("error200", "taken200"):
                code = {"error200": "InternalError", "taken200": "PreconditionFailed"}[fault]
                return self.complain(200, code, "injected")
            status, answered, content = self.give_keys(body) if sts else self.server.forward(request)
            if fault == "repeated":
                self.server.late.append([sys.maxsize, request])
            if fault in ("lost", "repeated"):
                return self.cut()
            if fault == "lost500":
                return self.complain(500, "InternalError", "injected, after all was done")
            if fault == "truncated" and len(content) > 1 and self.command != "HEAD":
                self.answer(status, answered, content, send=len(content) // 2)
                return self.cut()
            if fault == "slow":
                time.sleep(0.02)
        if fault == "paused":
            time.sleep(PAUSE)
        if fault == "blanks":
            # S3 sends the declaration at once.
            begin = content.index(b"?>") + 2
            return self.piecewise([content[:begin]] + [b" "] * 4 + [content[begin:]], PAUSE / 6)
        if fault == "dribble":
            return self.piecewise([b" "] * 600, 0.05)
        if fault == "stalled":
            time.sleep(10)
            return self.cut()
        return self.answer(status, answered, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request


def main():
    # moto itself signs nothing, but must not look for credentials elsewhere.
    os.environ.update(AWS_ACCESS_KEY_ID=KEY_ID, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_DEFAULT_REGION="us-east-1",
                      AWS_EC2_METADATA_DISABLED="true")
    server = Server(sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1", sys.argv[2])
    temporary = sys.argv[1] + ".tmp"
    with open(temporary, "w") as file:
        file.write(f"{server.server_address[1]}\n")
    os.rename(temporary, sys.argv[1])
    server.serve_forever()


if __name__ == "__main__":
    main()
