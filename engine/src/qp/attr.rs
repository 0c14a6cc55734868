//! Queue pair attributes.

use core::fmt;
use core::time::Duration;

use urxe_wire::{Mtu, Psn, QKey, Qpn, RnrTimer};

use crate::access::Access;

/// A set of attributes, with the bits of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AttrMask(u32);

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        impl AttrMask {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            const NAMES: &[(Self, &'static str)] = &[$((Self::$name, concat!("IBV_QP_", stringify!($name)))),*];
        }
    };
}

attributes! {
    /// The state to go to.
    STATE = 0;
    /// The state the caller believes the QP is in.
    CUR_STATE = 1;
    /// Raise `SQ_DRAINED` in SQD.
    EN_SQD_ASYNC_NOTIFY = 2;
    /// Access of peers.
    ACCESS_FLAGS = 3;
    /// Index into the P_Key table.
    PKEY_INDEX = 4;
    /// Port number.
    PORT = 5;
    /// The Q_Key (UD).
    QKEY = 6;
    /// The address vector of the peer.
    AV = 7;
    /// The path MTU.
    PATH_MTU = 8;
    /// The ACK timeout's exponent.
    TIMEOUT = 9;
    /// Tries after timeouts and sequence NAKs.
    RETRY_CNT = 10;
    /// Tries after RNR NAKs.
    RNR_RETRY = 11;
    /// The PSN expected first.
    RQ_PSN = 12;
    /// READs and atomics outstanding as requester.
    MAX_QP_RD_ATOMIC = 13;
    /// The alternate path.
    ALT_PATH = 14;
    /// The timer code in RNR NAKs.
    MIN_RNR_TIMER = 15;
    /// The PSN sent first.
    SQ_PSN = 16;
    /// READs and atomics accepted at once as responder.
    MAX_DEST_RD_ATOMIC = 17;
    /// The migration state.
    PATH_MIG_STATE = 18;
    /// Queue sizes.
    CAP = 19;
    /// The peer's QP number.
    DEST_QPN = 20;
    /// Packet pacing.
    RATE_LIMIT = 25;
}

impl AttrMask {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Attributes that every device knows, by `ibv_cmd_modify_qp`: up to the peer's QP number.
    pub const BASIC: Self = Self((Self::DEST_QPN.0 << 1) - 1);

    /// Takes the bits of `enum ibv_qp_attr_mask`, whatever they are.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the bits of `enum ibv_qp_attr_mask`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The attributes in `self` that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in the set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        let mut first = true;
        for (bit, name) in Self::NAMES {
            if self.contains(*bit) {
                f.write_str(if first { "" } else { "|" })?;
                f.write_str(name)?;
                first = false;
                rest = rest.without(*bit);
            }
        }
        if !rest.is_empty() {
            write!(f, "{}{:#x}", if first { "" } else { "|" }, rest.0)?;
        }
        Ok(())
    }
}

impl fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttrMask({self})")
    }
}

/// Path migration state; the numbers are those of `enum ibv_mig_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum MigrationState {
    /// Packets take the primary path, and there is no other to go to.
    #[default]
    Migrated = 0,
    /// The peer is told that there is an alternate path again.
    Rearm = 1,
    /// Both ends have an alternate path.
    Armed = 2,
}

impl MigrationState {
    /// Takes libibverbs' number.
    #[must_use]
    pub const fn from_u32(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Migrated),
            1 => Some(Self::Rearm),
            2 => Some(Self::Armed),
            _ => None,
        }
    }
}

/// The attributes that the engine acts on (`struct ibv_qp_attr`; the rest is the provider's to keep).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// Access of peers.
    pub access: Access,
    /// Bytes of payload in a full packet.
    pub path_mtu: Mtu,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// The first PSN expected.
    pub rq_psn: Psn,
    /// The first PSN sent.
    pub sq_psn: Psn,
    /// Exponent of the ACK timeout, 0 to 31; 0 waits for ever.
    pub timeout: u8,
    /// Tries after timeouts and sequence NAKs, 0 to 7.
    pub retry_cnt: u8,
    /// Tries after RNR NAKs, 0 to 7; 7 tries for ever.
    pub rnr_retry: u8,
    /// The timer in RNR NAKs.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics accepted at once as responder.
    pub max_dest_rd_atomic: u8,
    /// The Q_Key of a UD QP.
    pub q_key: QKey,
    /// Raise `SQ_DRAINED` in SQD.
    pub sqd_notify: bool,
    /// Exponent of the ACK timeout on the alternate path, as [`timeout`](Self::timeout).
    pub alt_timeout: u8,
    /// Path migration state.
    pub path_mig_state: MigrationState,
    /// An alternate path was given since RESET; the queue pair's to set.
    pub has_alternate: bool,
    /// The queue pair has migrated, and the peer may not know; the queue pair's to set.
    pub is_untold: bool,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            access: Access::NONE,
            path_mtu: Mtu::Mtu1024,
            dest_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: RnrTimer::default(),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            q_key: QKey(0),
            sqd_notify: false,
            alt_timeout: 0,
            path_mig_state: MigrationState::Migrated,
            has_alternate: false,
            is_untold: false,
        }
    }
}

impl QpAttr {
    /// The attributes with those of `given` that `mask` names put over them, but for those of path migration.
    #[must_use]
    pub const fn overlaid(mut self, given: &Self, mask: AttrMask) -> Self {
        macro_rules! take {
            ($($bit:ident $field:ident),*) => {
                $(if mask.contains(AttrMask::$bit) { self.$field = given.$field; })*
            };
        }
        take!(
            ACCESS_FLAGS access, PATH_MTU path_mtu, DEST_QPN dest_qpn, RQ_PSN rq_psn, SQ_PSN sq_psn,
            TIMEOUT timeout, RETRY_CNT retry_cnt, RNR_RETRY rnr_retry, MIN_RNR_TIMER min_rnr_timer,
            MAX_QP_RD_ATOMIC max_rd_atomic, MAX_DEST_RD_ATOMIC max_dest_rd_atomic, QKEY q_key,
            EN_SQD_ASYNC_NOTIFY sqd_notify
        );
        self
    }

    /// Time to wait for an acknowledgement: 4.096 µs · 2^timeout (IBA 9.7.6.1.3); `None` is for ever.
    ///
    /// Software among other processes cannot answer within microseconds, so nothing below 2 ms is waited for; the
    /// specification allows up to four times the nominal time, and the kernel's rxe rounds up to a tick of its
    /// timer, 4 ms at 250 Hz.
    #[must_use]
    #[inline]
    //= spec/requester.md#req-011
    //# Without an answer for 4.096 us times 2^timeout (and 2 ms at least) everything unacknowledged MUST be sent again.
    pub fn ack_timeout(&self) -> Option<Duration> {
        (self.timeout != 0).then(|| Duration::from_nanos(4096 << (self.timeout & 31)).max(Duration::from_millis(2)))
    }
}
