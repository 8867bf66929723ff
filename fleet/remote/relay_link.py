"""Links of the chain: TCP with mutual TLS 1.3, both ends holding the one certificate made for this transfer.

The predecessor dials. It says {"token", "epoch"}, the successor answers {"wants": [[from, to], ...]}; then those
bytes follow, unframed, and the successor may ask again: {"wants": []} ends the link. A newer epoch takes the place of
an older link; whoever does not know the token, or has another certificate, gets nothing.
"""
import errno
import hmac
import shutil
import socket
import ssl
import tempfile

HANDSHAKE_SECONDS = 5.0
DIAL_SECONDS = 3.0
GONE_MILLISECONDS = 30000
STRANGERS_AT_ONCE = 16
LINE_LIMIT = 64 << 20


def tls_context(server, tls):
    """Exactly this certificate on both ends, TLS 1.3; the key is on a disk (of memory) only while it is loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    if hasattr(ssl, "TLSVersion"):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        context.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1 | ssl.OP_NO_TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=tls["cert"])
    if server and hasattr(context, "num_tickets"):
        context.num_tickets = 0
    folder = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        fd = os.open(os.path.join(folder, "pem"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        write_all(fd, (tls["cert"] + tls["key"]).encode())
        os.close(fd)
        context.load_cert_chain(os.path.join(folder, "pem"))
    finally:
        shutil.rmtree(folder)
    return context


class Link:
    """A TLS connection with lines and raw bytes on it; one thread at a time."""

    def __init__(self, plain, context, server, tls, address=None):
        plain.settimeout(HANDSHAKE_SECONDS)
        self.sock = context.wrap_socket(plain, server_side=server, do_handshake_on_connect=False)
        try:
            if address is not None:
                self.sock.connect(address)
            self.sock.do_handshake()
            if self.sock.getpeercert(True) != ssl.PEM_cert_to_DER_cert(tls["cert"]):
                raise OSError(errno.EACCES, "another certificate")
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 18), GONE_MILLISECONDS)
        except BaseException:
            self.sock.close()
            raise

    def send_line(self, message):
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def read_line(self, limit=LINE_LIMIT):
        data = bytearray()
        while not data.endswith(b"\n"):
            # lines go one way at a time: nothing follows one until it was answered
            more = self.sock.recv(65536)
            if not more or len(data) + len(more) > limit:
                raise OSError(errno.ECONNRESET, "the other end closed the connection")
            data += more
        return json.loads(bytes(data).decode())

    def abort(self):
        """Wake whoever reads or writes; from any thread."""
        try:
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
        except OSError:
            pass


def addresses_to_bind(wanted):
    """Numeric addresses of this node to listen on, best first: the data address, else where SSH came in."""
    came_in = os.environ.get("SSH_CONNECTION", "").split()
    found = []
    try:
        for info in socket.getaddrinfo(wanted, 0, type=socket.SOCK_STREAM):
            if info not in found:
                found.append(info)
    except OSError:
        pass
    loopback = [i for i in found if i[4][0].startswith("127.") or i[4][0] == "::1"]
    if came_in and not (came_in[2].startswith("127.") or came_in[2] == "::1"):
        # Debian's /etc/hosts gives a machine's own name a loopback address, which nobody else reaches
        found = [i for i in found if i not in loopback]
    if len(came_in) == 4:
        found += socket.getaddrinfo(came_in[2].split("%")[0], 0, type=socket.SOCK_STREAM)
    return found


def listen_on(wanted):
    """A listening socket on the data address only."""
    for family, kind, _protocol, _name, address in addresses_to_bind(wanted):
        listener = socket.socket(family, kind)
        try:
            listener.bind(address)
            listener.listen(64)
            return listener
        except OSError:
            listener.close()
    raise Refused("no interface here has the data address %s" % wanted,
                  "set data_address in the inventory to an address of this host")


class Receiver:
    """Takes the newest rightful link and fills the store from it, until the program ends."""

    def __init__(self, store, tls, token, wanted):
        self.store, self.tls, self.token = store, tls, token
        self.context = tls_context(True, tls)
        self.listener = listen_on(wanted)
        self.strangers = threading.BoundedSemaphore(STRANGERS_AT_ONCE)
        self.epoch, self.link = 0, None

    def accept_forever(self):
        while True:
            try:
                plain = self.listener.accept()[0]
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):
                    return
                time.sleep(0.1)
                continue
            if self.strangers.acquire(False):
                start_thread(self.admit, plain)
            else:
                plain.close()

    def admit(self, plain):
        try:
            link = Link(plain, self.context, True, self.tls)
            hello = link.read_line(4096)
            if not hmac.compare_digest(str(hello.get("token")), self.token):
                raise OSError(errno.EACCES, "a wrong token")
            with self.store.ready:
                epoch = int(hello["epoch"])
                if epoch <= self.epoch:
                    raise OSError(errno.ESTALE, "an older link")
                before, self.epoch, self.link = self.link, epoch, link
                self.store.ready.notify_all()
            if before is not None:
                before.abort()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            plain.close()
        finally:
            self.strangers.release()

    def receive_forever(self):
        epoch = 0
        buffer = memoryview(bytearray(CHUNK))
        while True:
            with self.store.ready:
                while self.epoch == epoch:
                    self.store.ready.wait(1.0)
                    if self.store.stopped:
                        return
                link, epoch = self.link, self.epoch
            try:
                self.serve(link, epoch, buffer)
            except (Lost, Stopped):
                pass
            finally:
                link.sock.close()

    def serve(self, link, epoch, buffer):
        link.sock.settimeout(None)
        while True:
            wants = self.next_wants(epoch)
            with lost():
                link.send_line({"wants": wants})
            if not wants:
                return
            for begin, end in wants:
                while begin < end:
                    begin += self.fill(link, begin, buffer[:min(CHUNK, end - begin)])

    def fill(self, link, position, room):
        """Receive what is there, a chunk at most, and store it. A TLS record is 16 KiB: writes take several."""
        count = 0
        while count < len(room):
            with lost():
                got = link.sock.recv_into(room[count:])
            if not got:
                raise Lost("closed")
            count += got
            if not link.sock.pending():
                break
        self.store.put(position, room[:count])
        return count

    def next_wants(self, epoch):
        """What to ask for; [] when every file is in place or given up. Waits while files are being verified."""
        with self.store.ready:
            while True:
                wants = self.store.wants()
                if wants or self.store.settled():
                    return wants
                if self.store.stopped or self.epoch != epoch:
                    raise Stopped()
                self.store.ready.wait(0.5)


class Lost(Exception):
    """A link broke; OSError itself may as well come from a disk."""


class lost:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and issubclass(kind, (OSError, ValueError)):
            raise Lost(reason_of(error)) from None


def reason_of(error):
    if isinstance(error, socket.timeout):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return "TLS: %s" % (error.reason or error)
    return getattr(error, "strerror", None) or str(error)


class Sender:
    """Dials the successor that the head names, sends what it asks for; tells the head how that went."""

    def __init__(self, store, tls, limit):
        self.store, self.tls, self.limit = store, tls, limit
        self.context = tls_context(False, tls)
        self.order = {"epoch": 0, "addresses": []}
        self.link = None
        self.sent = 0
        self.at = None  # position of the next byte to send, None when idle

    def connect_to(self, order):
        with self.store.ready:
            if order["epoch"] <= self.order["epoch"]:
                return
            self.order, link = order, self.link
            self.store.ready.notify_all()
        if link is not None:
            link.abort()

    def send_forever(self):
        done = 0
        while True:
            with self.store.ready:
                while self.order["epoch"] == done:
                    self.store.ready.wait(1.0)
                    if self.store.stopped:
                        return
                order = self.order
            done = order["epoch"]
            if not order["addresses"]:
                continue
            try:
                self.send(order)
                send_json({"event": "served", "epoch": done})
            except Lost as error:
                if self.order is order:
                    send_json({"event": "link", "epoch": done, "connected": self.link is not None,
                               "why": error.args[0]})
            except Stopped:
                pass
            finally:
                self.at = None
                if self.link is not None:
                    self.link.sock.close()
                    self.link = None

    def dial(self, order):
        """The first address that answers."""
        why = ["no address"]
        for address, port in order["addresses"]:
            with_family = None
            try:
                with_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
                plain = socket.socket(with_family[0], socket.SOCK_STREAM)
                plain.settimeout(DIAL_SECONDS)
                try:
                    plain.connect(with_family[4])
                except OSError:
                    plain.close()
                    raise
                return Link(plain, self.context, False, self.tls)
            except (OSError, ValueError) as error:
                why.append("%s:%d: %s" % (address, port, reason_of(error)))
        raise Lost("; ".join(why[1:] or why))

    def send(self, order):
        link = self.dial(order)
        cancelled = lambda: self.order is not order  # noqa: E731
        with self.store.ready:
            self.link = link
            if cancelled():
                raise Stopped()
        link.sock.settimeout(None)
        with lost():
            link.send_line({"token": order["token"], "epoch": order["epoch"]})
        while True:
            with lost():
                wants = link.read_line()["wants"]
            if not wants:
                return
            for begin, end in wants:
                while begin < end:
                    self.at = begin
                    data = self.store.take(begin, end, cancelled)
                    if self.limit:
                        self.limit.spend(len(data))
                    with lost():
                        link.sock.sendall(data)
                    begin += len(data)
                    self.sent += len(data)
            self.at = None


class Limit:
    """A token bucket: bytes a second, a quarter of a second's worth at once."""

    def __init__(self, rate):
        self.rate, self.tokens, self.then = rate, 0.0, time.monotonic()

    def spend(self, count):
        while count > 0:
            now = time.monotonic()
            self.tokens = min(self.rate / 4, self.tokens + (now - self.then) * self.rate)
            self.then = now
            if self.tokens < 1:
                time.sleep(min(0.05, 1 / self.rate + 0.005))
                continue
            piece = min(count, int(self.tokens))
            self.tokens -= piece
            count -= piece


def start_thread(target, *args):
    thread = threading.Thread(target=target, args=args)
    thread.daemon = True
    thread.start()
