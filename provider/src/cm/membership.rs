//! Groups that an id is in, or asks to join.

use urxe_wire::Gid;

/// Kind of a membership (`JoinState` of IBA 15.2.5.17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Full member.
    Full = 1,
    /// Full member that only sends.
    SendOnly = 8,
}

/// Join that waits for the answer of subnet administration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    /// Handle of the group.
    pub(super) group: u32,
    pub(super) mgid: Gid,
    pub(super) role: Role,
    /// A second request is to follow, which makes the group.
    pub(super) may_make: bool,
}

/// A group of an id.
pub(crate) struct Group {
    pub(crate) handle: u32,
    /// The application's name for it.
    pub(crate) uid: u64,
    pub(crate) events_reported: u32,
    /// The membership, once subnet administration has let the port join.
    pub(crate) joined: Option<Joined>,
}

/// A membership in a group of InfiniBand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Joined {
    pub(crate) mgid: Gid,
    pub(crate) role: Role,
}
