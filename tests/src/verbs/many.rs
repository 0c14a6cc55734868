//! Many queue pairs of one process.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::cq::{Cq, Status};
use super::memory::{ALL_ACCESS, Mr, Pd};
use super::pair::{Options, connect_to};
use super::qp::{Init, Qp};
use super::{Context, PostError};

/// Queue pairs that share a completion queue and memory.
pub struct Many {
    /// Has room for a message sent and one received by each.
    pub cq: Arc<Cq>,
    /// A page.
    pub mr: Mr,
    /// Queue pairs.
    pub qps: Vec<Qp>,
}

impl Many {
    /// Makes `count` queue pairs, in RESET.
    pub fn new(count: usize) -> Result<Self> {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, i32::try_from(2 * count)?, None)?;
        let mr = Mr::alloc(&pd, 4096, ALL_ACCESS)?;
        let qps = (0..count).map(|_| Qp::new(&pd, &cq, &cq, &Init::default())).collect::<Result<_, _>>()?;
        Ok(Self { cq, mr, qps })
    }

    /// Numbers of the queue pairs.
    pub fn numbers(&self) -> Vec<u32> {
        self.qps.iter().map(Qp::number).collect()
    }

    /// RESET → RTS, each towards the queue pair of this device that has the number in its place.
    pub fn connect(&self, peers: &[u32], options: &Options) -> Result<()> {
        let gid = self.cq.context().query_gid(1, i32::try_from(options.gid)?)?;
        self.qps.iter().zip(peers).try_for_each(|(qp, peer)| connect_to(qp, *peer, gid, options))
    }

    /// Posts to each.
    pub fn post(&self, post: impl Fn(&Qp) -> Result<(), PostError>) -> Result<()> {
        Ok(self.qps.iter().try_for_each(post)?)
    }

    /// Waits for so many completions, which must all be of success.
    pub fn complete(&self, count: usize) -> Result<()> {
        for wc in self.cq.take(count)? {
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        }
        Ok(())
    }
}
