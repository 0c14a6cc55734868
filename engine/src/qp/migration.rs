//! Automatic path migration (IBA 17.2.8): a connection has two paths, and goes on over the other when one fails.
//!
//! | state | MigReq of packets | what ends it |
//! |---|---|---|
//! | MIGRATED | 1 | the consumer sets REARM, with an alternate path |
//! | REARM | 0, or 1 while the peer may not know of the last migration | a packet of the peer without MigReq on the primary path: ARMED |
//! | ARMED | 0 | tries run out, the path is known to be down, the consumer sets MIGRATED, or a packet with MigReq comes on the alternate path: MIGRATED |
//!
//! The paths change places then: the alternate one is the primary, and the one left is the next alternate, which REARM
//! takes up again unless another is given. A peer that is ARMED takes the other path only with MigReq, so that a queue pair which
//! has migrated on its own goes on to send 1 in REARM until a packet of the peer comes on the new path. A queue pair that never
//! had an alternate path sends MigReq 0, as the kernel's rxe does.

use core::mem;

use urxe_wire::opcode::Role;
use urxe_wire::{Bth, Opcode, Psn};

use super::attr::{AttrMask, MigrationState, QpAttr};
use super::send::SendSide;
use super::{ModifyError, Origin, QpType, QueuePair, Route};
use crate::async_event::AsyncEvent;
use crate::event::{Event, MigrationCause};
use crate::host::{Consumer, Host, Io, Network};

/// Ways to the peer that a modify gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Paths<R> {
    /// The primary path, of [`AttrMask::AV`].
    pub primary: Option<R>,
    /// The alternate path, of [`AttrMask::ALT_PATH`].
    pub alternate: Option<R>,
}

impl<R> From<Option<R>> for Paths<R> {
    fn from(primary: Option<R>) -> Self {
        Self { primary, alternate: None }
    }
}

/// The alternate path of a queue pair.
#[derive(Debug)]
pub(super) struct Migration<R> {
    alternate: Option<R>,
    /// Whether the paths have changed places an odd number of times.
    has_swapped: bool,
    /// The alternate path was the primary one until the last migration: the peer was on it.
    is_alternate_left: bool,
    /// The path that the last migration left, once another alternate path has been given.
    left: Option<R>,
    /// The consumer knows that the peer asks for a path that it cannot have.
    has_refused: bool,
}

impl<R> Default for Migration<R> {
    fn default() -> Self {
        Self { alternate: None, has_swapped: false, is_alternate_left: false, left: None, has_refused: false }
    }
}

impl QpAttr {
    /// MigReq of packets that leave.
    //= spec/states.md#qps-012
    //# MigReq MUST be 1 in MIGRATED, and 0 in ARMED and, but for QPS-018, in REARM; without an alternate path it MUST be 0.
    //= spec/states.md#qps-018
    //# A queue pair that has migrated on its own, or takes a packet without MigReq of the path it left, MUST send MigReq in
    //# REARM too, until the peer is heard on the new path; paths of the same addresses are not told apart.
    #[inline]
    pub(super) fn mig_req(&self) -> bool {
        self.has_alternate && (self.path_mig_state == MigrationState::Migrated || self.is_untold)
    }

    /// The base header of a packet to the peer.
    #[inline]
    pub(super) fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth { mig_req: self.mig_req(), ..Bth::new(opcode, self.dest_qpn, psn) }
    }
}

impl<H: Host> QueuePair<H> {
    /// Whether the alternate path given last is the primary one by now, or the one given last but two, and so on: with it, a
    /// host that keeps two address vectors knows which is which.
    pub const fn has_swapped_paths(&self) -> bool {
        self.migration.has_swapped
    }

    /// The alternate path, once there is one.
    pub const fn alternate_route(&self) -> Option<&<<H as Host>::Network as Network>::Route> {
        self.migration.alternate.as_ref()
    }

    /// The primary path is known to be down: goes on over the alternate one at once, if that is armed. Returns whether it does.
    pub fn path_failed(&mut self, io: &mut Io<'_, H>) -> bool {
        let goes_on = self.state.receives() && self.attr.path_mig_state == MigrationState::Armed;
        if goes_on {
            self.migrate(io, MigrationCause::PathDown);
        }
        goes_on
    }

    /// Checks an alternate path and a state that a modify gives.
    //= spec/states.md#qps-013
    //# REARM without an alternate path, and ARMED unless it is armed for the same path, MUST be refused with EINVAL.
    pub(super) fn check_migration(&self, mask: AttrMask, given: &QpAttr, has_route: bool) -> Result<(), ModifyError> {
        let gives_path = mask.contains(AttrMask::ALT_PATH);
        if gives_path && (!has_route || given.alt_timeout > 31) {
            return Err(ModifyError::Value(AttrMask::ALT_PATH));
        }
        let may = match given.path_mig_state {
            MigrationState::Migrated => true,
            MigrationState::Rearm => gives_path || self.migration.alternate.is_some(),
            MigrationState::Armed => self.attr.path_mig_state == MigrationState::Armed && !gives_path,
        };
        if may || !mask.contains(AttrMask::PATH_MIG_STATE) {
            Ok(())
        } else {
            Err(ModifyError::Value(AttrMask::PATH_MIG_STATE))
        }
    }

    /// Takes an alternate path and a state that were checked.
    pub(super) fn modify_migration(
        &mut self,
        io: &mut Io<'_, H>,
        mask: AttrMask,
        given: &QpAttr,
        alternate: Option<Route<H>>,
    ) {
        if mask.contains(AttrMask::ALT_PATH) {
            let replaced = mem::replace(&mut self.migration.alternate, alternate);
            if mem::take(&mut self.migration.is_alternate_left) {
                self.migration.left = replaced;
            }
            self.attr.alt_timeout = given.alt_timeout;
            self.attr.has_alternate = true;
            //= spec/states.md#qps-019
            //# An alternate path given in ARMED MUST put the queue pair in REARM: the peer was armed for another.
            if self.attr.path_mig_state == MigrationState::Armed {
                self.rearm();
            }
        }
        if !mask.contains(AttrMask::PATH_MIG_STATE) {
            return;
        }
        match given.path_mig_state {
            MigrationState::Migrated if self.attr.path_mig_state == MigrationState::Armed => {
                self.migrate(io, MigrationCause::Consumer);
            }
            MigrationState::Migrated => self.attr.path_mig_state = MigrationState::Migrated,
            MigrationState::Rearm => self.rearm(),
            MigrationState::Armed => {}
        }
    }

    const fn rearm(&mut self) {
        self.attr.path_mig_state = MigrationState::Rearm;
        self.migration.has_refused = false;
    }

    /// Whether a packet that did not take the primary path may have taken the alternate one, since the peer has migrated; or
    /// the one left last, since it was sent before the peer heard that this end has migrated.
    //= spec/states.md#qps-020
    //# Packets of the path that was left last MUST be taken, when armed those without MigReq; other packets of the alternate path
    //# MUST be dropped in MIGRATED, and everywhere those without MigReq.
    pub(super) fn admits_by_alternate(&self, mig_req: bool, origin: &Origin<H>) -> bool {
        let may = match self.attr.path_mig_state {
            MigrationState::Migrated => self.is_from_left(origin),
            MigrationState::Rearm => mig_req && self.is_from_alternate(origin) || self.is_from_left(origin),
            MigrationState::Armed if mig_req => self.is_from_alternate(origin),
            MigrationState::Armed => self.is_from_left(origin),
        };
        self.attr.has_alternate && may
    }

    /// Whether a packet is from the peer by more than its header. CNPs and offers may be late or anybody's, as may a request far
    /// from the one expected, and a response that is none to a request outstanding or to the last one done. UC takes up any PSN.
    //= spec/states.md#qps-021
    //# CNPs, selective repeat offers, requests of RC and XRC far from the one expected, and answers to what is not outstanding MUST
    //# NOT arm or migrate a queue pair, nor raise PATH_MIG_ERR.
    pub(super) fn speaks_of_paths(&self, bth: &Bth) -> bool {
        let psn = bth.psn;
        match (bth.opcode.info().role, &self.send) {
            (Role::Request, _) => self.config.qp_type == QpType::Uc || self.responder.is_near(psn),
            (Role::Response, SendSide::Reliable(requester)) => {
                let is_due = psn.distance_from(requester.snd_una) >= -1 && psn.distance_from(requester.snd_max()) < 0;
                self.state.sends() && is_due
            }
            (Role::Notification, SendSide::Reliable(requester)) if bth.opcode == Opcode::SELECTIVE_ACK => {
                // It has the first PSN that is missing.
                let is_due = psn.distance_from(requester.snd_una) >= 0 && psn.distance_from(requester.snd_max()) <= 0;
                self.state.sends() && self.takes_selective_acks() && is_due
            }
            (Role::Response, SendSide::Unreliable(_)) | (Role::Notification, _) => false,
        }
    }

    fn is_from_alternate(&self, origin: &Origin<H>) -> bool {
        self.migration.alternate.as_ref().is_some_and(|route| H::Network::is_from(route, origin))
    }

    /// Whether a packet comes by the path that the last migration left.
    fn is_from_left(&self, origin: &Origin<H>) -> bool {
        let Migration { alternate, is_alternate_left, left, .. } = &self.migration;
        let left = if *is_alternate_left { alternate } else { left };
        left.as_ref().is_some_and(|route| H::Network::is_from(route, origin))
    }

    /// Follows what an admitted packet of the peer says about its paths.
    //= spec/states.md#qps-014
    //# In REARM a packet without MigReq on the primary path MUST arm the queue pair; when it is armed, one with MigReq on the
    //# alternate path MUST migrate it.
    #[cold]
    pub(super) fn follow_peer(&mut self, io: &mut Io<'_, H>, mig_req: bool, origin: &Origin<H>) {
        let is_primary = self.route.as_ref().is_some_and(|route| H::Network::is_from(route, origin));
        self.attr.is_untold &= !is_primary;
        let follows = match self.attr.path_mig_state {
            MigrationState::Migrated => false,
            MigrationState::Rearm if is_primary && !mig_req => {
                self.attr.path_mig_state = MigrationState::Armed;
                false
            }
            MigrationState::Rearm if is_primary => false,
            // The peer was armed, and has been told so; only its packets that would have told this end were lost.
            MigrationState::Rearm if mig_req => self.is_from_alternate(origin),
            MigrationState::Rearm => {
                // The peer is on the path that was left: it has not heard, or the packet is late and the next one comes on the
                // primary path.
                self.attr.is_untold = true;
                false
            }
            // Both paths may have the same addresses.
            MigrationState::Armed => mig_req && self.is_from_alternate(origin),
        };
        if follows {
            self.migrate(io, MigrationCause::Peer);
        }
    }

    /// A packet came from elsewhere than a path leads to: a peer that has migrated to a path of its own?
    //= spec/states.md#qps-015
    //# A packet with MigReq that takes neither path of an armed queue pair MUST be dropped, and raise PATH_MIG_ERR, once, if one of
    //# its addresses is that of an end of a path.
    pub(super) fn note_stranger(&mut self, io: &mut Io<'_, H>, mig_req: bool, origin: &Origin<H>) {
        let mut paths = self.route.iter().chain(&self.migration.alternate);
        let is_refused = self.attr.path_mig_state == MigrationState::Armed
            && mig_req
            && paths.any(|route| io.network.shares_end(route, origin));
        if is_refused && !mem::replace(&mut self.migration.has_refused, true) {
            io.consumer.async_event(self.config.qpn, AsyncEvent::PathMigrationError);
        }
    }

    /// Tries have run out: goes on over the alternate path, if that is armed. Returns whether it does.
    //= spec/states.md#qps-016
    //# When the tries of an armed queue pair have run out, it MUST go on over the alternate path, with all its tries.
    pub(super) fn survives_retries(&mut self, io: &mut Io<'_, H>) -> bool {
        let is_armed = self.attr.path_mig_state == MigrationState::Armed;
        if is_armed {
            self.migrate(io, MigrationCause::Retries);
        }
        is_armed
    }

    /// Has the paths change places, and sends again what may have been lost on the one that is left.
    #[cold]
    fn migrate(&mut self, io: &mut Io<'_, H>, cause: MigrationCause) {
        let (Some(primary), Some(alternate)) = (&mut self.route, &mut self.migration.alternate) else { return };
        mem::swap(primary, alternate);
        mem::swap(&mut self.attr.timeout, &mut self.attr.alt_timeout);
        self.migration.has_swapped = !self.migration.has_swapped;
        self.migration.is_alternate_left = true;
        self.migration.left = None;
        self.attr.path_mig_state = MigrationState::Migrated;
        self.attr.is_untold = cause != MigrationCause::Peer;
        io.consumer.trace(self.config.qpn, Event::Migrated { cause });
        //= spec/states.md#qps-017
        //# A queue pair that migrates MUST raise PATH_MIG.
        io.consumer.async_event(self.config.qpn, AsyncEvent::PathMigrated);
        if let SendSide::Reliable(requester) = &mut self.send
            && self.state.sends()
        {
            requester.path_changed(&self.config, &self.attr, io);
        }
    }
}
