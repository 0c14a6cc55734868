//! Rules about what is made and destroyed, and its keys.

use urxe_engine::{Key, Region};
use urxe_explain::Verb;
use urxe_wire::Qpn;

use super::dedup::Object;
use super::keys::Dead;
use super::rules::Rule;
use super::{Advice, Strict};
use crate::Observer;
use crate::fmt::Refused;
use urxe_runtime::{clock, lock};

impl Observer {
    /// A completion queue of `capacity` now serves queues of `demand` requests.
    pub(crate) fn sized(&self, qpn: Qpn, cq: u64, capacity: usize, demand: u64) {
        let Some(strict) = &self.strict else { return };
        if demand > capacity as u64 {
            let what = format!("a CQ of {capacity} elements serves queues of {demand} work requests");
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::CqTooSmall, Object::Cq(cq), advice);
        }
    }

    /// An address without a GRH is refused.
    pub fn no_grh(&self) {
        let Some(strict) = &self.strict else { return };
        let what = "an address vector without a GRH";
        let advice = Advice { qpn: Qpn::default(), what, site: None };
        self.tell(strict, Rule::MissingGrh, Object::Device, advice);
    }

    /// A region is about to be deregistered.
    pub fn deregistering(&self, key: Key) {
        if let Some(strict) = &self.strict {
            lock(&strict.received).deregister(key, &self.regions);
        }
    }

    /// A region has been deregistered.
    pub fn deregistered(&self, key: Key, iova: u64, length: u64) {
        let Some(strict) = &self.strict else { return };
        let dead = Dead { iova, length, at: clock::now(), site: strict.site() };
        let long_gone = lock(&strict.keys).bury(key, dead);
        // The key may have been another region's before.
        for key in long_gone.into_iter().chain([key]) {
            strict.forget(Object::Dead(key));
        }
    }

    /// An access by `qpn`, or by its peer, was refused: perhaps because the region is gone.
    pub(crate) fn check_dead(&self, qpn: Qpn, refused: &Refused) {
        let Some(strict) = &self.strict else { return };
        let denied = &refused.denied;
        let Some(Dead { iova, length, at, site }) = lock(&strict.keys).dead(denied.key).cloned() else { return };
        let ago = clock::now().since(at).as_millis();
        let what = format!(
            "access by QP {qpn} to {:#x} with key {:#x} of a region that was deregistered {ago} ms ago, [{iova:#x}, +{length})",
            denied.va, denied.key.0
        );
        let advice = Advice { qpn, what: &what, site: Some(site.as_deref().unwrap_or_default()) };
        self.tell(strict, Rule::DeadKey, Object::Dead(denied.key), advice);
    }

    /// A window is about to be bound.
    pub(super) fn binding(&self, strict: &Strict, qpn: Qpn, wr_id: u64, new_key: Key) {
        if lock(&strict.keys).bind(new_key) {
            let what =
                format!("bind, wr_id {wr_id}, on QP {qpn} with R_Key {:#x}, which the window had before", new_key.0);
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::KeyAgain, Object::Window(new_key.0 >> 8), advice);
        }
    }

    /// A window is no more.
    pub fn forget_window(&self, key: Key) {
        if let Some(strict) = &self.strict {
            lock(&strict.keys).forget_window(key);
            strict.forget(Object::Window(key.0 >> 8));
        }
    }

    /// A queue pair is no more.
    pub(crate) fn forget_qp(&self, qpn: Qpn) {
        if let Some(strict) = &self.strict {
            strict.forget(Object::Qp(qpn));
        }
    }

    /// A completion queue is no more.
    pub fn forget_cq(&self, cq: u64) {
        if let Some(strict) = &self.strict {
            strict.forget(Object::Cq(cq));
        }
    }

    /// `verb` has waited for some time for `missing` calls of `acknowledge`.
    pub fn not_acknowledged(&self, verb: Verb, acknowledge: &str, missing: u32) {
        let Some(strict) = &self.strict else { return };
        let what = format!("{verb} waits for {missing} events that were read and not acknowledged ({acknowledge})");
        let advice = Advice { qpn: Qpn::default(), what: &what, site: None };
        self.tell(strict, Rule::NotAcknowledged, Object::Device, advice);
    }

    /// The device is closed; so many queue pairs and regions are still there.
    pub fn closed(&self, queue_pairs: usize, count: usize, regions: &[Region]) {
        let Some(strict) = &self.strict else { return };
        if queue_pairs + count > 0 {
            let list: Vec<String> =
                regions.iter().take(4).map(|region| format!("[{:#x}, +{})", region.iova, region.length)).collect();
            let list = if list.is_empty() { String::new() } else { format!(" ({})", list.join(", ")) };
            let what = format!("ibv_close_device with {count} MRs and {queue_pairs} queue pairs left{list}");
            let advice = Advice { qpn: Qpn::default(), what: &what, site: None };
            self.tell(strict, Rule::LeftOpen, Object::Device, advice);
        }
    }
}
