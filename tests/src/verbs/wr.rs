//! Work requests.

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use urxe_ffi::verbs as v;

/// Memory of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// The R_Key.
    pub rkey: u32,
}

/// Operation; immediate data is in the host's byte order.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum Op {
    Send,
    SendImm(u32),
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    CmpSwp { remote: Remote, compare: u64, swap: u64 },
    FetchAdd { remote: Remote, add: u64 },
}

/// A send work request.
#[derive(Clone)]
pub struct SendWr {
    /// The caller's number for it.
    pub wr_id: u64,
    /// Operation.
    pub op: Op,
    /// Local memory.
    pub sges: Vec<v::ibv_sge>,
    /// `IBV_SEND_…`.
    pub flags: c_uint,
    /// The peer's SRQ, on XRC.
    pub xrc_srq: u32,
}

impl SendWr {
    /// A signaled request.
    pub fn new(op: Op, sges: &[v::ibv_sge]) -> Self {
        Self { wr_id: 0, op, sges: sges.to_vec(), flags: v::IBV_SEND_SIGNALED, xrc_srq: 0 }
    }

    /// Sets the number.
    pub fn id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }

    /// Sends to this SRQ of the peer.
    pub fn to_srq(self, xrc_srq: u32) -> Self {
        Self { xrc_srq, ..self }
    }

    /// Sets these flags too.
    pub fn with(self, flags: c_uint) -> Self {
        Self { flags: self.flags | flags, ..self }
    }

    /// Asks for no completion when it succeeds.
    pub fn unsignaled(self) -> Self {
        Self { flags: self.flags & !v::IBV_SEND_SIGNALED, ..self }
    }

    pub(super) fn raw(&self) -> v::ibv_send_wr {
        // SAFETY: a plain C struct: numbers, unions of numbers, null pointers.
        let mut wr: v::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.wr_id = self.wr_id;
        wr.sg_list = self.sges.as_ptr().cast_mut();
        wr.num_sge = i32::try_from(self.sges.len()).expect("a list of a test");
        wr.send_flags = self.flags;
        wr.qp_type.xrc = v::ibv_send_wr__bindgen_ty_3__bindgen_ty_1 { remote_srqn: self.xrc_srq };
        let rdma =
            |remote: Remote| v::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: remote.addr, rkey: remote.rkey };
        let atomic = |remote: Remote, compare_add, swap| v::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey,
        };
        wr.opcode = match self.op {
            Op::Send => v::IBV_WR_SEND,
            Op::SendImm(imm) => {
                wr.__bindgen_anon_1.imm_data = imm.to_be();
                v::IBV_WR_SEND_WITH_IMM
            }
            Op::Write(remote) => {
                wr.wr.rdma = rdma(remote);
                v::IBV_WR_RDMA_WRITE
            }
            Op::WriteImm(remote, imm) => {
                wr.wr.rdma = rdma(remote);
                wr.__bindgen_anon_1.imm_data = imm.to_be();
                v::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Op::Read(remote) => {
                wr.wr.rdma = rdma(remote);
                v::IBV_WR_RDMA_READ
            }
            Op::CmpSwp { remote, compare, swap } => {
                wr.wr.atomic = atomic(remote, compare, swap);
                v::IBV_WR_ATOMIC_CMP_AND_SWP
            }
            Op::FetchAdd { remote, add } => {
                wr.wr.atomic = atomic(remote, add, 0);
                v::IBV_WR_ATOMIC_FETCH_AND_ADD
            }
        };
        wr
    }
}

/// A list of send requests as libibverbs takes it, to be posted any number of times.
pub struct SendList {
    raw: Vec<v::ibv_send_wr>,
    /// Has the elements that `raw` points to.
    _requests: Vec<SendWr>,
}

impl SendList {
    /// List of these requests.
    pub fn new(requests: Vec<SendWr>) -> Self {
        let mut raw: Vec<_> = requests.iter().map(SendWr::raw).collect();
        for nth in 1..raw.len() {
            let next: *mut v::ibv_send_wr = &raw mut raw[nth];
            raw[nth - 1].next = next;
        }
        Self { raw, _requests: requests }
    }

    pub(super) const fn first(&mut self) -> *mut v::ibv_send_wr {
        self.raw.as_mut_ptr()
    }
}

/// A receive work request.
#[derive(Clone)]
pub struct RecvWr {
    /// The caller's number for it.
    pub wr_id: u64,
    /// Buffers for the message.
    pub sges: Vec<v::ibv_sge>,
}

impl RecvWr {
    /// A request.
    pub fn new(wr_id: u64, sges: &[v::ibv_sge]) -> Self {
        Self { wr_id, sges: sges.to_vec() }
    }

    pub(super) fn raw(&self) -> v::ibv_recv_wr {
        v::ibv_recv_wr {
            wr_id: self.wr_id,
            next: std::ptr::null_mut(),
            sg_list: self.sges.as_ptr().cast_mut(),
            num_sge: i32::try_from(self.sges.len()).expect("a list of a test"),
        }
    }
}
