//! Objects of one process: its part of the domain of a file, and connected queue pairs.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use anyhow::{Result, ensure};
use urxe_tests::verbs::memory::{ALL_ACCESS, Mr};
use urxe_tests::verbs::pair::connect;
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Channel, Context, Cq, Options, Pd, Qp, SendWr, Srq, Status, Xrcd};

/// Bytes of every region here.
pub(crate) const MEMORY: usize = 2 << 20;
/// Receives an SRQ has room for, and completions its queue.
pub(crate) const ROOM: u32 = 64;

/// Objects of one process: a device, and its part of the domain of a file.
pub(crate) struct Part {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) xrcd: Arc<Xrcd>,
    pub(crate) mr: Mr,
}

impl Part {
    pub(crate) fn of(file: &str) -> Result<Self> {
        let file = File::open(file)?;
        let context = Context::open()?;
        let (pd, channel) = (Pd::new(&context)?, Channel::new(&context)?);
        let cq = Cq::new(&context, ROOM.cast_signed(), Some(&channel))?;
        // The file may be closed afterwards.
        let xrcd = Xrcd::open(&context, file.as_raw_fd(), libc::O_CREAT)?;
        let mr = Mr::alloc(&pd, MEMORY, ALL_ACCESS)?;
        Ok(Self { context, pd, cq, channel, xrcd, mr })
    }

    pub(crate) fn srq(&self) -> Result<Arc<Srq>> {
        Ok(Srq::xrc(&self.pd, &self.xrcd, &self.cq, ROOM)?)
    }

    /// An initiator and a target, connected.
    pub(crate) fn pair(&self, options: &Options) -> Result<Ends> {
        let initiator = Qp::xrc_initiator(&self.pd, &self.cq, &Init { cap: options.cap, ..Init::default() })?;
        let target = Qp::xrc_target(&self.pd, &self.xrcd)?;
        connect(&self.context, &initiator, &target, options)?;
        Ok(Ends { initiator, target })
    }
}

pub(crate) struct Ends {
    pub(crate) initiator: Qp,
    pub(crate) target: Qp,
}

impl Ends {
    /// The status of one request.
    pub(crate) fn complete(&self, part: &Part, wr: &SendWr) -> Result<Status> {
        self.initiator.post_send(wr)?;
        let wc = part.cq.next()?;
        ensure!(wc.wr_id == wr.wr_id, "another request's: {wc:?}");
        Ok(wc.status)
    }

    pub(crate) fn succeed(&self, part: &Part, wr: &SendWr) -> Result<()> {
        let status = self.complete(part, wr)?;
        ensure!(status == Status::SUCCESS, "{:?}: {status:?}", wr.op);
        Ok(())
    }
}
