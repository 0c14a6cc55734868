"""One end of a scenario: its verbs objects, by rdma-core's pyverbs."""

import socket
import time

from pyverbs import enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from plan import ATOMIC, GRH, IMMEDIATE, RECEIVED, Outcome, memory

Q_KEY = 0x11223344
SERVER_PSN = 0xABCDE0
DEPTH = 64
OPCODES = {
    "SEND": e.IBV_WR_SEND,
    "SEND_IMM": e.IBV_WR_SEND_WITH_IMM,
    "SEND_INV": e.IBV_WR_SEND_WITH_INV,
    "WRITE": e.IBV_WR_RDMA_WRITE,
    "WRITE_IMM": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "READ": e.IBV_WR_RDMA_READ,
    "SWAP": e.IBV_WR_ATOMIC_CMP_AND_SWP,
    "ADD": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
RECEIVE_OPCODES = {"WRITE_IMM": e.IBV_WC_RECV_RDMA_WITH_IMM}
STATUS_NAMES = {
    value: name.removeprefix("IBV_WC_")
    for name, value in vars(e).items()
    if name.startswith("IBV_WC_") and (name.endswith("_ERR") or name == "IBV_WC_SUCCESS")
}


class Wrong(Exception):
    """Something did not come out as it must."""


def check(condition, text):
    if not condition:
        raise Wrong(text)


def flags(prefix, names):
    return sum(getattr(e, prefix + name) for name in names)


class End:
    """Objects of either end: a PD, a CQ, a region, a QP."""

    def __init__(self, context, gid_index, scenario, name):
        self.context, self.gid_index, self.scenario, self.name = context, gid_index, scenario, name
        self.outcome = Outcome(scenario)
        self.size = self.outcome.layout.size
        self.offsets = self.outcome.layout.offsets
        access = ("REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")
        qp_access, mr_access = (scenario.qp_access, scenario.mr_access) if name == "server" else (access, access)
        self.pd = PD(context)
        self.channel = CompChannel(context) if scenario.solicited else None
        self.cq = CQ(context, 2 * DEPTH, None, self.channel, 0)
        mr_flags = e.IBV_ACCESS_LOCAL_WRITE | flags("IBV_ACCESS_", mr_access)
        self.mr = MR(self.pd, self.size, mr_flags | (e.IBV_ACCESS_MW_BIND if scenario.window else 0))
        self.mr.write(bytes(memory(name, self.size)), self.size)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(DEPTH, scenario.pieces))) if scenario.srq else None
        pieces = scenario.pieces
        inline = 64 if any("INLINE" in op.flags for op in scenario.ops) else 0
        cap = QPCap(DEPTH, 0 if self.srq else DEPTH, pieces, 0 if self.srq else pieces, inline)
        qp_type = getattr(e, "IBV_QPT_" + scenario.service)
        init = QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=cap, srq=self.srq, sq_sig_all=1)
        attr = QPAttr(port_num=1)
        attr.pkey_index = 0
        if scenario.service == "UD":
            attr.qkey = Q_KEY
        else:
            attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | flags("IBV_ACCESS_", qp_access)
        self.qp = QP(self.pd, init, attr)
        self.window = None

    def close(self):
        for thing in (self.window, self.qp, self.srq, self.mr, self.cq, self.channel, self.pd):
            if thing is not None:
                thing.close()

    def introduction(self, psn):
        gid = self.context.query_gid(1, self.gid_index).gid
        return {"qpn": self.qp.qp_num, "psn": psn, "gid": str(gid), "key": self.mr.rkey, "address": self.mr.buf}

    def route_to(self, peer):
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=self.gid_index, hop_limit=64)
        return AHAttr(port_num=1, is_global=1, gr=route, dlid=0)

    def connect(self, peer, psn, mtu):
        if self.scenario.service == "UD":
            return  # was ready to send when it was made
        attr = QPAttr()
        attr.path_mtu = getattr(e, f"IBV_MTU_{mtu}")
        attr.dest_qp_num = peer["qpn"]
        attr.rq_psn, attr.sq_psn = peer["psn"], psn
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.min_rnr_timer = 14  # 1.28 ms
        attr.timeout = 18  # 1.07 s: a busy machine keeps the other end from its processor for a while
        attr.retry_cnt = 7
        attr.rnr_retry = self.scenario.rnr_retry
        if self.scenario.nobody:
            attr.timeout, attr.retry_cnt = 12, 2
        attr.ah_attr = self.route_to(peer)
        self.qp.to_rts(attr)

    def wait(self, count, limit):
        """So many completions, or those that came within `limit` seconds."""
        found, deadline = [], time.monotonic() + limit
        while len(found) < count and time.monotonic() < deadline:
            more = self.cq.poll(count - len(found))[1]
            found += more
            if not more:
                time.sleep(0.0002)
        return found

    def pieces(self, offset, length):
        """SGEs for these bytes."""
        count = self.scenario.pieces
        size = -(-length // count)
        for index in range(count):
            start = min(index * size, length)
            yield SGE(self.mr.buf + offset + start, min(size, length - start), self.mr.lkey)

    def check_memory(self):
        trouble = self.outcome.difference(self.name, self.mr.read(self.size, 0))
        check(not trouble, trouble)


class Server(End):
    def bind(self, answer):
        """A window over all of the region, if the scenario wants one."""
        if not self.scenario.window:
            return
        self.window = MW(self.pd, e.IBV_MW_TYPE_2)
        request = SendWR(opcode=e.IBV_WR_BIND_MW)
        access = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
        request.set_bind_wr(self.window, MWBindInfo(self.mr, self.mr.buf, self.size, access))
        self.qp.post_send(request)
        done = self.wait(1, 10)
        check(done and done[0].status == e.IBV_WC_SUCCESS, "the window was not bound")
        self.window_key = answer["window"] = request.rkey

    def post_receives(self):
        scenario = self.scenario
        for index, op in enumerate(scenario.ops):
            if op.kind not in RECEIVED:
                continue
            length = op.length + (GRH if scenario.service == "UD" else 0)
            sges = list(self.pieces(self.offsets[index], scenario.receive or length))
            (self.srq or self.qp).post_recv(RecvWR(wr_id=index, num_sge=len(sges), sg=sges))

    def arm(self):
        if self.channel:
            self.cq.req_notify(True)

    def check_receives(self):
        """Every message that was to arrive, and as it was to arrive."""
        if self.channel:
            self.channel.get_cq_event(self.cq)
            self.cq.ack_events(1)
        ops = [(index, op) for index, op in enumerate(self.scenario.ops) if op.kind in RECEIVED]
        arriving = [(index, op) for index, op in ops if op.status == "SUCCESS"]
        found = self.wait(len(arriving), 10)
        check(len(found) == len(arriving), f"{len(found)} receives of {len(arriving)}")
        for wc, (index, op) in zip(found, arriving):
            what = f"receive of operation {index}"
            check(wc.wr_id == index, f"{what}: receive {wc.wr_id} was used")
            check(wc.status == e.IBV_WC_SUCCESS, f"{what}: {STATUS_NAMES.get(wc.status)}")
            check(wc.opcode == RECEIVE_OPCODES.get(op.kind, e.IBV_WC_RECV), f"{what}: opcode {wc.opcode}")
            length = op.length + (GRH if self.scenario.service == "UD" else 0)
            check(wc.byte_len == length, f"{what}: {wc.byte_len} bytes, not {length}")
            if op.kind.endswith("IMM"):
                check(wc.wc_flags & e.IBV_WC_WITH_IMM, f"{what}: no immediate")
                check(socket.ntohl(wc.imm_data) == IMMEDIATE, f"{what}: immediate {socket.ntohl(wc.imm_data):#x}")
            if op.kind == "SEND_INV":
                check(wc.wc_flags & e.IBV_WC_WITH_INV, f"{what}: no invalidated key")
                check(wc.imm_data == self.window_key, f"{what}: key {wc.imm_data:#x} invalidated")
            if self.scenario.service == "UD":
                check(wc.wc_flags & e.IBV_WC_GRH, f"{what}: no GRH")
        # Nothing else completes well; what was posted in vain is flushed, or tells of the error.
        for wc in self.wait(1, 0.02):
            check(wc.status != e.IBV_WC_SUCCESS, f"a receive too many: {wc.wr_id}")


class Client(End):
    def request(self, index, peer):
        op = self.scenario.ops[index]
        sges = list(self.pieces(self.offsets[index], op.length))
        send_flags = e.IBV_SEND_SIGNALED | flags("IBV_SEND_", op.flags)
        # One union of immediate data and the key to invalidate.
        immediate = socket.htonl(IMMEDIATE) if op.kind.endswith("IMM") else 0
        if op.kind == "SEND_INV":
            immediate = peer["window"]
        request = SendWR(index, OPCODES[op.kind], len(sges), immediate, sges, send_flags)
        key = {"region": peer["key"], "window": peer.get("window"), "wrong": peer["key"] ^ 0x5A00}[op.key]
        remote = peer["address"] + op.shift
        if op.kind in ATOMIC:
            request.set_wr_atomic(key, remote + 8 * op.word, *op.values)
        elif "WRITE" in op.kind or op.kind == "READ":
            request.set_wr_rdma(key, (remote + self.offsets[index]) % 2**64)
        elif self.scenario.service == "UD":
            request.set_wr_ud(self.handle, peer["qpn"], Q_KEY)
        return request

    def exchange(self, peer):
        """Posts everything, and checks how it completes."""
        scenario = self.scenario
        if scenario.service == "UD":
            self.handle = AH(self.pd, attr=self.route_to(peer))
        done = []
        for index in range(len(scenario.ops)):
            self.qp.post_send(self.request(index, peer))
            if not scenario.batch:
                done += self.wait(1, 20)
        done += self.wait(len(scenario.ops) - len(done), 40)
        check(len(done) == len(scenario.ops), f"{len(done)} completions of {len(scenario.ops)}")
        for wc, (index, op) in zip(done, enumerate(scenario.ops)):
            check(wc.wr_id == index, f"completion {wc.wr_id} in place of {index}")
            status = STATUS_NAMES.get(wc.status, wc.status)
            check(status == op.status, f"operation {index}: {status}, not {op.status}")
        failed = any(op.status != "SUCCESS" for op in scenario.ops)
        expected = e.IBV_QPS_ERR if failed else e.IBV_QPS_RTS
        # The kernel shows a completion in error before it changes the state (COMPST_ERROR in rxe_comp.c); urxe may not.
        state = self.state(expected, 0 if self.context.name.startswith("urxe") else 1)
        check(state == expected, f"the client's QP is in state {state}")

    def state(self, expected, limit):
        """The QP's state, which has `limit` seconds to become this one."""
        deadline = time.monotonic() + limit
        while True:
            state = self.qp.query(e.IBV_QP_STATE)[0].qp_state
            if state == expected or time.monotonic() >= deadline:
                return state
            time.sleep(0.0002)
