//! Interface of a port: link changes and removal.

use core::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Port;
use crate::interface::Interface;
use crate::link_monitor::LinkEvent;
use crate::mutex::lock;

impl Port {
    /// The interface as it is now: [`Receiver::receive`](crate::Receiver::receive) follows its changes.
    pub fn interface(&self) -> Arc<Interface> {
        Arc::clone(&self.interface.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there is anything for [`take_link_events`](Self::take_link_events) or [`take_due_last_wills`](Self::take_due_last_wills):
    /// asked with every receiving, nearly always for nothing.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.has_link_events.load(Ordering::Relaxed) || self.last_wills.are_due()
    }

    /// Takes the changes of the interface since the last call.
    pub fn take_link_events(&self) -> Vec<LinkEvent> {
        if !self.has_link_events.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        core::mem::take(&mut *lock(&self.link_events))
    }

    /// Whether packets may leave from every address. Where an interface is down, the kernel would have another one send those to
    /// addresses that it has a route to, as no port does.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        // Those that are down are known by then: see `follow_links`.
        self.is_up.load(Ordering::Acquire)
    }

    /// Has packets leave from the addresses of `now` that are up, or from all if `may_send`.
    fn follow_links(&self, now: &Arc<Interface>, may_send: bool) {
        lock(&self.routes).follow(now);
        self.is_up.store(may_send, Ordering::Release);
    }

    /// Notes the interface as it was read. Where its changes are not `watched`, one that is down may come up unnoticed: packets
    /// leave all the same.
    pub(crate) fn set_interface(&self, now: Interface, watched: bool) {
        let now = Arc::new(now);
        self.follow_links(&now, !watched || now.has_all_up());
        let mut interface = self.interface.write().unwrap_or_else(PoisonError::into_inner);
        if *interface != now {
            let changes = LinkEvent::between(&interface, &now);
            *interface = now;
            self.note(changes);
        }
    }

    /// Notes that the interface has changed and could not be read: packets leave until it is known that they may not.
    pub(crate) fn set_interface_unknown(&self) {
        self.is_up.store(true, Ordering::Release);
    }

    /// Notes that the interface was removed.
    pub(crate) fn set_interface_gone(&self) {
        let gone = Arc::new(self.interface().removed());
        self.follow_links(&gone, false);
        *self.interface.write().unwrap_or_else(PoisonError::into_inner) = gone;
        self.note(vec![LinkEvent::Gone]);
    }

    fn note(&self, changes: Vec<LinkEvent>) {
        lock(&self.link_events).extend(changes);
        self.has_link_events.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use urxe_wire::{Gid, Qpn};

    use super::*;
    use crate::route::Destination;
    use crate::sys::fd::{Budgets, FdSet};
    use crate::tx::batch::TxBatch;

    /// Packets that are sent while the change of an interface waits for a thread that looks at it: they do not leave, and do not wait.
    #[test]
    fn packets_stay_before_the_interface_is_replaced() {
        let fds = FdSet::new().unwrap();
        let port = Port::new(&fds, Interface::by_name("lo").unwrap(), 8, &Budgets::of(8), false).unwrap();
        let own = Gid::from(IpAddr::from([127, 0, 0, 1]));
        let dest_qpn = Qpn::new(0x111);
        let to = Destination { local: own, remote: own, dest_qpn, flow_label: 0, tclass: 0, hop_limit: 0 };
        let route = port.route(&to).unwrap();
        let mut batch = TxBatch::new();
        let looked_at = port.interface.read().unwrap();
        thread::scope(|scope| {
            let port = &port;
            let (told, result) = mpsc::channel();
            scope.spawn(|| port.set_interface_gone());
            scope.spawn(move || {
                while port.may_send() {
                    thread::yield_now();
                }
                batch.packet(port, &route, 64).fill(0);
                batch.commit();
                batch.flush(port);
                told.send(port.counters().tx_unreachable.load(Ordering::Relaxed)).unwrap();
            });
            let dropped = result.recv_timeout(Duration::from_secs(60));
            drop(looked_at);
            assert_eq!(dropped, Ok(1));
        });
    }
}
