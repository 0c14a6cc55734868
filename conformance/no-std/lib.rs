//! Two queue pairs exchange a SEND, a WRITE and a READ in a library without `std`.
//!
//! That this links is the proof: a dependency that brings `std` along brings a second panic handler, which the
//! compiler refuses. `main.c` calls it.

#![no_std]

extern crate alloc;

use alloc::vec;
use core::mem::MaybeUninit;
use core::net::{IpAddr, Ipv4Addr};
use core::panic::PanicInfo;

use linked_list_allocator::LockedHeap;
use urxe_engine::endpoint::{Buffer, CqId, HeapMemory, Route, connected_attr};
use urxe_engine::{
    Access, Data, Endpoint, Instant, Memory, Pd, QpSetup, QpType, RecvWr, SendOp, SendWr, SgeList, WcStatus,
};
use urxe_wire::Qpn;

#[global_allocator]
static ALLOCATOR: LockedHeap = LockedHeap::empty();

static mut HEAP: [MaybeUninit<u8>; 1 << 20] = [MaybeUninit::uninit(); 1 << 20];

#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    loop {}
}

/// Returns 0 if all three messages arrive although one packet in seven is lost, else the number of the step that failed.
/// Call it once.
#[unsafe(no_mangle)]
pub extern "C" fn urxe_two_queue_pairs() -> i32 {
    // SAFETY: called once, before the first allocation; nothing else names HEAP.
    unsafe { ALLOCATOR.lock().init_from_slice(&mut *(&raw mut HEAP)) };
    run().err().unwrap_or(0)
}

/// One end of the connection.
struct End {
    endpoint: Endpoint<HeapMemory>,
    buffer: Buffer,
    cq: CqId,
    qpn: Qpn,
}

impl End {
    fn new(host: u8) -> Option<Self> {
        let pd = Pd(1);
        let mut memory = HeapMemory::new(host.into());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = memory.register(pd, access, 16_384)?;
        let mut endpoint = Endpoint::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)), memory, host.into());
        let cq = endpoint.create_cq(16);
        let qpn = endpoint.create_qp(&QpSetup { sq_sig_all: true, ..QpSetup::new(QpType::Rc, pd, cq, cq) });
        Some(Self { endpoint, buffer, cq, qpn })
    }

    fn post(&mut self, now: Instant, op: SendOp, buffers: SgeList) -> Result<(), ()> {
        let wr = SendWr { op, data: Data::Gather(buffers), ..SendWr::default() };
        self.endpoint.post_send(now, self.qpn, wr, None).map_err(drop)
    }

    fn holds(&self, offset: u64, expected: &[u8]) -> bool {
        let mut bytes = vec![0; expected.len()];
        self.endpoint.memory().read(self.buffer.addr + offset, &mut bytes).is_ok() && bytes == expected
    }

    /// The number of successful completions; `None` if one failed.
    fn completed(&mut self) -> Option<usize> {
        let mut count = 0;
        while let Some(cqe) = self.endpoint.poll_cq(self.cq) {
            if cqe.status != WcStatus::Success {
                return None;
            }
            count += 1;
        }
        Some(count)
    }
}

fn run() -> Result<(), i32> {
    let mut now = Instant::default();
    let mut ends = [End::new(1).ok_or(1)?, End::new(2).ok_or(1)?];
    let peers = [1, 0].map(|peer: usize| (ends[peer].endpoint.address(), ends[peer].qpn));
    for (end, (to, peer_qpn)) in ends.iter_mut().zip(peers) {
        let route = Route { to, source_port: 0xC000 };
        end.endpoint.connect(now, end.qpn, &connected_attr(peer_qpn), Some(route)).map_err(|_| 2)?;
    }
    let text = b"no std";
    let [a, b] = &mut ends;
    a.endpoint.memory().write(a.buffer.addr, text).map_err(|_| 3)?;
    let recv = RecvWr { wr_id: 1, buffers: b.buffer.sge(0, 64) };
    b.endpoint.post_recv(now, b.qpn, recv).map_err(|_| 4)?;
    a.post(now, SendOp::Send, a.buffer.sge(0, 6)).map_err(|()| 5)?;
    a.post(now, SendOp::Write(b.buffer.remote(8192)), a.buffer.sge(0, 8192)).map_err(|()| 6)?;
    a.post(now, SendOp::Read(b.buffer.remote(8192)), a.buffer.sge(8192, 6)).map_err(|()| 7)?;
    let mut packets = 0_u32;
    loop {
        let mut silent = true;
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(datagram) = ends[from].endpoint.poll_transmit(now) {
                (silent, packets) = (false, packets + 1);
                if packets % 7 != 3 {
                    ends[to].endpoint.handle_datagram(now, &datagram);
                }
            }
        }
        if silent {
            let Some(at) = ends.iter().filter_map(|end| end.endpoint.next_timeout()).min() else { break };
            now = at;
            ends.iter_mut().for_each(|end| end.endpoint.handle_timeout(now));
        }
    }
    let [a, b] = &mut ends;
    if !b.holds(0, text) || !b.holds(8192, text) || !a.holds(8192, text) {
        return Err(9);
    }
    if a.completed() == Some(3) && b.completed() == Some(1) { Ok(()) } else { Err(10) }
}
