//! What is different about UC and UD: nothing is acknowledged, and nothing is sent twice (IBA 9.8).
//!
//! [`requester`] sends and completes at once, as fast as [`pace`] lets it. The responders are in [`recv`](crate::qp).

mod pace;
mod requester;

use urxe_wire::Psn;

use crate::cq::{Cqe, WcOpcode};
use crate::event::Event;
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io};
use crate::qp::state::QpState;
use crate::qp::{Progress, QpConfig, QueuePair};
use crate::work::RecvWr;
pub(in crate::qp) use requester::Requester;

/// The part of a UC or UD queue pair that others do not have.
pub(in crate::qp) struct Unreliable<H: Host> {
    pub(in crate::qp) requester: Requester<H>,
    /// The rest of a message is being dropped, until the next First or Only (UC).
    pub(in crate::qp) dropping: bool,
}

impl<H: Host> Unreliable<H> {
    /// For a queue pair of this type; `None` for a reliable one.
    pub(in crate::qp) fn new(config: &QpConfig<H>) -> Option<Self> {
        let requester = Requester::new(config.window);
        (!config.qp_type.is_reliable()).then_some(Self { requester, dropping: false })
    }
}

impl<H: Host> QueuePair<H> {
    /// Sends what is to be sent.
    pub(in crate::qp) fn transmit_unreliable(&mut self, io: &mut Io<'_, H>) -> Progress {
        let Some(unreliable) = &mut self.unreliable else { return Progress::Idle };
        if !self.state.sends() {
            return Progress::Idle;
        }
        let may_start = self.state == QpState::Rts;
        let route = self.route.as_ref();
        let progress = match unreliable.requester.transmit(&self.config, &self.attr, route, io, may_start) {
            Ok(progress) => progress,
            Err(status) => {
                // Receiving goes on (IBA 10.3.1.6).
                unreliable.requester.fail_front(&self.config, io, status);
                unreliable.requester.flush(&self.config, io);
                self.drain_pending = false;
                self.set_state(io, QpState::Sqe);
                Progress::Idle
            }
        };
        self.check_drained(io);
        progress
    }

    /// Returns a receive WQE of which nothing came: it serves the next message.
    pub(in crate::qp) fn give_back(&mut self, wr: Option<RecvWr>) {
        if let Some(wr) = wr {
            self.rq.push_front(wr);
        }
    }

    /// The consumer's own receive WQE is no good: it completes with an error, and the queue pair goes to ERR (IBA
    /// 9.9.3.2).
    pub(in crate::qp) fn local_fault(
        &mut self,
        io: &mut Io<'_, H>,
        fault: ResponderFault,
        wr: Option<RecvWr>,
        psn: Psn,
    ) {
        io.consumer.trace(self.config.qpn, Event::ResponderFault { fault, psn });
        if let Some(wr) = wr {
            let cqe = self.recv_completion(io, &wr, WcOpcode::Recv, 0, None, false);
            self.complete_recv(io, Cqe { status: fault.consequence().recv, ..cqe });
        }
        self.enter_error(io);
    }
}
