"""One end of a connection by PyPI's bindings `ibverbs` (rdma4py).

    ibverbs_peer.py server PORT                  serves one client after the other
    ibverbs_peer.py client ADDRESS PORT COUNT    COUNT rounds of every operation, compared; 0: WRITEs that are read back, without end

The two tell each other of queue pairs and memory by TCP.
"""

import hashlib
import json
import mmap
import random
import socket
import sys

import ibverbs as ib

SIZE = 1 << 20
#: Behind the data: two numbers for atomic operations.
ROOM = SIZE + mmap.PAGESIZE
ACCESS = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ | ib.AccessFlags.REMOTE_ATOMIC
#: Row 1 is the IPv4 address.
GID_INDEX = 1
SIGNALED = ib.SendFlags.SIGNALED
QKEY = 0x11111111
GRH = 40


class End:
    def __init__(self, connection):
        self.connection, self.lines = connection, connection.makefile("r")
        self.context = ib.get_device_list()[0].open()
        self.pd = self.context.alloc_pd()
        self.channel = self.context.create_comp_channel()
        self.send_cq, self.recv_cq = self.context.create_cq(64), self.context.create_cq(64, self.channel)
        self.memory = mmap.mmap(-1, ROOM)
        self.mr = self.pd.reg_mr(address(self.memory), ROOM, ACCESS)
        # RC with an SRQ, UC and UD with receive queues of their own.
        self.srq = self.pd.create_srq(max_wr=16)
        self.rc = self.pd.create_qp(ib.QPInitAttr(self.send_cq, self.recv_cq, srq=self.srq, max_inline_data=64))
        self.uc = self.pd.create_qp(ib.QPInitAttr(self.send_cq, self.recv_cq, ib.QPType.UC))
        self.ud = self.pd.create_qp(ib.QPInitAttr(self.send_cq, self.recv_cq, ib.QPType.UD))
        port, self.gid = self.context.query_port(1), self.context.query_gid(1, GID_INDEX)
        infos = [ib.local_qp_info(qp, port, self.gid, port=1).to_bytes().hex() for qp in (self.rc, self.uc, self.ud)]
        self.tell([infos, address(self.memory), self.mr.rkey])
        infos, self.remote_addr, self.rkey = self.told()
        rc, uc, self.peer = (ib.QPInfo.from_bytes(bytes.fromhex(info)) for info in infos)
        ib.connect_rc(self.rc, rc, port=1, sgid_index=GID_INDEX, access=ACCESS, timeout=14, retry_cnt=7)
        self.connect_uc(uc)
        self.connect_ud()
        self.tell("ready")
        assert self.told() == "ready"

    def connect_uc(self, peer):
        mask = ib.QPAttrMask
        self.uc.to_init(1, ib.AccessFlags.REMOTE_WRITE)
        self.uc.modify(mask.STATE | mask.AV | mask.PATH_MTU | mask.DEST_QPN | mask.RQ_PSN, qp_state=ib.QPState.RTR, path_mtu=peer.mtu,
                       dest_qp_num=peer.qp_num, rq_psn=peer.psn, ah_attr=ib.AHAttr(dgid=peer.gid, sgid_index=GID_INDEX, hop_limit=64))
        self.uc.modify(mask.STATE | mask.SQ_PSN, qp_state=ib.QPState.RTS, sq_psn=0)

    def connect_ud(self):
        self.ud.to_init(1, qkey=QKEY)
        self.ud.to_rtr(self.peer, sgid_index=GID_INDEX)
        self.ud.to_rts(0)
        self.ah = self.pd.create_ah(ib.AHAttr(dgid=self.peer.gid, sgid_index=GID_INDEX, hop_limit=64))

    def tell(self, value):
        self.connection.sendall(json.dumps(value).encode() + b"\n")

    def told(self):
        line = self.lines.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    def sge(self, length, offset=0):
        return ib.SGE(self.mr, length, offset=offset)

    def complete(self, qp, request):
        qp.post_send(request)
        while not (found := self.send_cq.poll(1)):
            pass
        if not found[0].is_success:
            sys.exit(f"failed: status {found[0].status} {found[0].status_str}")
        return found[0]

    def received(self):
        """The next message's completion, by an event."""
        while not (found := self.recv_cq.poll(1)):
            self.recv_cq.req_notify()
            if found := self.recv_cq.poll(1):
                break
            self.channel.get_cq_event()
            self.recv_cq.ack_events(1)
        found[0].raise_for_status()
        return found[0]


def address(memory):
    import ctypes
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def digest(data):
    return hashlib.sha1(data).hexdigest()


def receiver(end, kind):
    """The queue that takes a message of this kind."""
    return {"rc": end.srq, "uc": end.uc, "ud": end.ud}[kind]


def serve(end):
    """Answers: posts a receive, tells what came; tells a digest of its memory."""
    while True:
        words = end.told()
        if words[0] == "receive":
            receiver(end, words[1]).post_recv(ib.RecvWR(1, [end.sge(SIZE)]))
            end.tell("posted")
            found = end.received()
            at = GRH if words[1] == "ud" else 0
            end.tell([digest(end.memory[at:found.byte_len]), found.byte_len - at, found.imm_data])
        elif words[0] == "digest":
            end.tell(digest(end.memory[:words[1]]))
        elif words[0] == "numbers":
            end.tell([int.from_bytes(end.memory[SIZE + at:SIZE + at + 8], sys.byteorder) for at in (0, 8)])


def same(ours, theirs, what):
    if ours != theirs:
        sys.exit(f"{what}: {theirs} is not {ours}")


def message(end, kind, data, **more):
    end.memory[:len(data)] = data
    end.tell(["receive", kind])
    assert end.told() == "posted"
    end.complete(getattr(end, kind), ib.SendWR(sg_list=[end.sge(len(data))], **more))
    found, length, imm = end.told()
    same([digest(data), len(data)], [found, length], f"a message by {kind}")
    return imm


def compare(end, number, counter):
    dice = random.Random(number)
    opcode = ib.WROpcode
    message(end, "rc", dice.randbytes(SIZE), opcode=opcode.SEND, send_flags=SIGNALED)
    message(end, "rc", dice.randbytes(48), opcode=opcode.SEND, send_flags=SIGNALED | ib.SendFlags.INLINE | ib.SendFlags.SOLICITED)
    same(number, message(end, "rc", dice.randbytes(777), opcode=opcode.SEND_WITH_IMM, send_flags=SIGNALED, imm_data=number), "immediate")
    message(end, "uc", dice.randbytes(30_000), opcode=opcode.SEND, send_flags=SIGNALED)
    message(end, "ud", dice.randbytes(900), opcode=opcode.SEND, send_flags=SIGNALED, ah=end.ah, remote_qpn=end.peer.qp_num, remote_qkey=QKEY)
    there = {"remote_addr": end.remote_addr, "rkey": end.rkey, "send_flags": SIGNALED}
    data = dice.randbytes(SIZE)
    end.memory[:SIZE] = data
    end.complete(end.rc, ib.SendWR(sg_list=[end.sge(SIZE)], opcode=opcode.RDMA_WRITE, **there))
    end.tell(["digest", SIZE])
    same(digest(data), end.told(), "WRITE")
    end.memory[:SIZE] = bytes(SIZE)
    end.complete(end.rc, ib.SendWR(sg_list=[end.sge(SIZE)], opcode=opcode.RDMA_READ, **there))
    same(digest(data), digest(end.memory[:SIZE]), "READ")
    word = end.sge(8, SIZE)
    there |= {"remote_addr": end.remote_addr + SIZE}
    end.complete(end.rc, ib.SendWR(sg_list=[word], opcode=opcode.ATOMIC_FETCH_AND_ADD, compare_add=3, **there))
    same(counter, int.from_bytes(end.memory[SIZE:SIZE + 8], sys.byteorder), "FETCH_AND_ADD")
    there |= {"remote_addr": end.remote_addr + SIZE + 8}
    end.complete(end.rc, ib.SendWR(sg_list=[word], opcode=opcode.ATOMIC_CMP_AND_SWP, compare_add=counter // 3, swap=counter // 3 + 1, **there))
    same(counter // 3, int.from_bytes(end.memory[SIZE:SIZE + 8], sys.byteorder), "CMP_AND_SWP")
    end.tell(["numbers"])
    same([counter + 3, counter // 3 + 1], end.told(), "the numbers")


def write_and_read(end, number):
    """Needs nothing of the other end's program."""
    half = SIZE // 2
    data = random.Random(number).randbytes(half)
    end.memory[:half] = data
    there = {"remote_addr": end.remote_addr, "rkey": end.rkey, "send_flags": SIGNALED}
    end.complete(end.rc, ib.SendWR(sg_list=[end.sge(half)], opcode=ib.WROpcode.RDMA_WRITE, **there))
    end.complete(end.rc, ib.SendWR(sg_list=[end.sge(half, half)], opcode=ib.WROpcode.RDMA_READ, **there))
    same(digest(data), digest(end.memory[half:SIZE]), "what was read back")


def main():
    if sys.argv[1] == "server":
        listener = socket.create_server(("", int(sys.argv[2])))
        print("listening", flush=True)
        while True:
            try:
                serve(End(listener.accept()[0]))
            except EOFError:
                print("end of a client", flush=True)
    end = End(socket.create_connection((sys.argv[2], int(sys.argv[3]))))
    count, done = int(sys.argv[4]), 0
    while not count or done < count:
        compare(end, done, 3 * done) if count else write_and_read(end, done)
        done += 1
        print(f"done {done}", flush=True)
    print(f"compared {done}", flush=True)


main()
