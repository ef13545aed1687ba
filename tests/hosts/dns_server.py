"""A DNS server for tests: the IPv4 addresses of the pods of a namespace, as a cluster's DNS has them. A name that has no
address does not exist. Remembers who asked for what."""
import collections
import socket
import struct
import threading

TTL_SECONDS = 5
TYPE_A, CLASS_IN = 1, 1
NO_ERROR, NAME_ERROR, NOT_IMPLEMENTED = 0, 3, 4
AUTHORITATIVE_ANSWER, RECURSION_DESIRED, RECURSION_AVAILABLE = 0x8400, 0x0100, 0x0080

# `answer` is the address, or None: there is no such name.
Question = collections.namedtuple("Question", "client name answer")


class DnsServer:
    """Serves on UDP at `address`, port 53, from its construction on, in a thread. All methods are thread-safe."""

    def __init__(self, address, domain):
        self.domain = domain
        self._lock = threading.Lock()
        self._addresses, self._questions = {}, []  # by full name, without the last dot; the oldest first
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def set(self, name, address):
        """`name` is one of the domain, such as weir-ps-0.weir-ps; with None it no longer exists."""
        with self._lock:
            self._addresses[f"{name}.{self.domain}"] = address

    def questions(self, name, client=None, answer=None):
        """How often `client` (an address; None: anyone) asked for `name` and got `answer`."""
        wanted = Question(client, f"{name}.{self.domain}", answer)
        with self._lock:
            return sum(wanted in (question, question._replace(client=None)) for question in self._questions)

    def _serve(self):
        while True:
            query, peer = self._socket.recvfrom(512)
            try:
                answer = self._answer(query, peer[0])
            except (struct.error, IndexError, UnicodeDecodeError):
                continue  # no query: a resolver asks again
            self._socket.sendto(answer, peer)

    def _answer(self, query, client):
        number, flags, questions = struct.unpack_from("!HHH", query)
        at, labels = 12, []
        while query[at] != 0:
            labels.append(query[at + 1:at + 1 + query[at]].decode("ascii"))
            at += 1 + query[at]
        kind, group = struct.unpack_from("!HH", query, at + 1)
        question = query[12:at + 5]
        name = ".".join(labels).lower()
        with self._lock:
            address = self._addresses.get(name)
            if kind == TYPE_A:
                self._questions.append(Question(client, name, address))
        code, record = NO_ERROR if address is not None else NAME_ERROR, b""
        if questions != 1 or group != CLASS_IN:
            code = NOT_IMPLEMENTED
        elif kind == TYPE_A and address is not None:
            # 0xC00C points to the name in the question.
            record = struct.pack("!HHHIH", 0xC00C, TYPE_A, CLASS_IN, TTL_SECONDS, 4) + socket.inet_aton(address)
        flags = AUTHORITATIVE_ANSWER | RECURSION_AVAILABLE | flags & RECURSION_DESIRED | code
        return struct.pack("!HHHHHH", number, flags, 1, 1 if record else 0, 0, 0) + question + record
