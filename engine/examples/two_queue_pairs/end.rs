//! One end of a connection, and the network between two: of this example and, without `std`, of `conformance/no-std`.

use alloc::boxed::Box;
use alloc::vec;
use core::error::Error;
use core::net::{IpAddr, Ipv4Addr};

use urxe_engine::endpoint::{Buffer, CqId, Datagram, HeapMemory, Route, connected_attr};
use urxe_engine::{Access, Data, Endpoint, Instant, Memory, Pd, QpSetup, QpType, SendOp, SendWr, SgeList};
use urxe_wire::Qpn;

pub(crate) type Result<T> = core::result::Result<T, Box<dyn Error>>;

/// One end: an RC queue pair, and a buffer of 16 KiB that the peer may read and write.
pub(crate) struct End {
    pub(crate) endpoint: Endpoint<HeapMemory>,
    pub(crate) buffer: Buffer,
    pub(crate) cq: CqId,
    pub(crate) qpn: Qpn,
}

impl End {
    pub(crate) fn new(host: u8) -> Result<Self> {
        let pd = Pd(1);
        let mut memory = HeapMemory::new(host.into());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = memory.register(pd, access, 16_384).ok_or("an empty table has room for a region")?;
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
        let mut endpoint = Endpoint::new(address, memory, host.into());
        let cq = endpoint.create_cq(16);
        let qpn = endpoint.create_qp(&QpSetup { sq_sig_all: true, ..QpSetup::new(QpType::Rc, pd, cq, cq) });
        Ok(Self { endpoint, buffer, cq, qpn })
    }

    /// Two connected ends.
    pub(crate) fn pair(now: Instant) -> Result<[Self; 2]> {
        let mut ends = [Self::new(1)?, Self::new(2)?];
        let peers = [1, 0].map(|peer: usize| (ends[peer].endpoint.address(), ends[peer].qpn));
        for (end, (to, peer_qpn)) in ends.iter_mut().zip(peers) {
            let route = Route { to, source_port: 0xC000 };
            end.endpoint.connect(now, end.qpn, &connected_attr(peer_qpn), Some(route))?;
        }
        Ok(ends)
    }

    pub(crate) fn post(&mut self, now: Instant, wr_id: u64, op: SendOp, buffers: SgeList) -> Result<()> {
        let wr = SendWr { wr_id, op, data: Data::Gather(buffers), ..SendWr::default() };
        Ok(self.endpoint.post_send(now, self.qpn, wr, None)?)
    }

    pub(crate) fn holds(&self, offset: u64, expected: &[u8]) -> Result<bool> {
        let mut bytes = vec![0; expected.len()];
        self.endpoint.memory().read(self.buffer.addr + offset, &mut bytes)?;
        Ok(bytes == expected)
    }
}

/// Exchanges packets until neither end waits for any, and returns the time then; packets that `delivers` refuses are lost.
pub(crate) fn exchange(ends: &mut [End; 2], mut now: Instant, mut delivers: impl FnMut(&Datagram) -> bool) -> Instant {
    loop {
        let mut silent = true;
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(datagram) = ends[from].endpoint.poll_transmit(now) {
                silent = false;
                if delivers(&datagram) {
                    ends[to].endpoint.handle_datagram(now, &datagram);
                }
            }
        }
        if silent {
            // Nothing is on its way: time goes on to the next timeout, if anything is still waited for.
            let Some(at) = ends.iter().filter_map(|end| end.endpoint.next_timeout()).min() else { return now };
            now = at;
            ends.iter_mut().for_each(|end| end.endpoint.handle_timeout(now));
        }
    }
}
