//! Events that an application reads from a file: completion events and asynchronous events.

use std::fmt::Debug;

/// Type of an asynchronous event; the discriminants are those of `enum ibv_event_type` (ibv_get_async_event(3)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum EventType {
    /// A completion queue overran.
    CqError = 0,
    /// A queue pair failed for a reason of the device's own.
    QpFatal = 1,
    /// A request was invalid.
    QpRequestError = 2,
    /// An access of the peer was refused.
    QpAccessError = 3,
    /// A packet arrived in RTR.
    CommunicationEstablished = 4,
    /// The send queue is drained.
    SqDrained = 5,
    /// The path was migrated.
    PathMigrated = 6,
    /// The path could not be migrated.
    PathMigrationError = 7,
    /// The device can do nothing any more.
    DeviceFatal = 8,
    /// The port became active.
    PortActive = 9,
    /// The port went down.
    PortError = 10,
    /// A LID changed.
    LidChange = 11,
    /// The P_Key table changed.
    PkeyChange = 12,
    /// The subnet manager changed.
    SmChange = 13,
    /// A shared receive queue failed.
    SrqError = 14,
    /// A shared receive queue has fewer WQEs than its limit.
    SrqLimitReached = 15,
    /// The last WQE of a queue pair with an SRQ was taken.
    LastWqeReached = 16,
    /// Clients of the subnet manager register again.
    ClientReregister = 17,
    /// The GID table changed.
    GidChange = 18,
    /// A work queue failed.
    WqFatal = 19,
}

impl EventType {
    /// Every type, in the order of their numbers.
    pub const ALL: [Self; 20] = [
        Self::CqError,
        Self::QpFatal,
        Self::QpRequestError,
        Self::QpAccessError,
        Self::CommunicationEstablished,
        Self::SqDrained,
        Self::PathMigrated,
        Self::PathMigrationError,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortError,
        Self::LidChange,
        Self::PkeyChange,
        Self::SmChange,
        Self::SrqError,
        Self::SrqLimitReached,
        Self::LastWqeReached,
        Self::ClientReregister,
        Self::GidChange,
        Self::WqFatal,
    ];

    /// Whether events of this type concern the port or the whole device, not one object.
    #[must_use]
    pub const fn is_of_port(self) -> bool {
        matches!(
            self,
            Self::DeviceFatal
                | Self::PortActive
                | Self::PortError
                | Self::LidChange
                | Self::PkeyChange
                | Self::SmChange
                | Self::ClientReregister
                | Self::GidChange
        )
    }

    /// Returns the type of this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|event_type| *event_type as u32 == number)
    }
}

impl From<urxe_engine::AsyncEvent> for EventType {
    fn from(event: urxe_engine::AsyncEvent) -> Self {
        use urxe_engine::AsyncEvent;
        match event {
            AsyncEvent::QpFatal => Self::QpFatal,
            AsyncEvent::QpRequestError => Self::QpRequestError,
            AsyncEvent::QpAccessError => Self::QpAccessError,
            AsyncEvent::CommunicationEstablished => Self::CommunicationEstablished,
            AsyncEvent::SqDrained => Self::SqDrained,
            AsyncEvent::LastWqeReached => Self::LastWqeReached,
            AsyncEvent::PathMigrated => Self::PathMigrated,
            AsyncEvent::PathMigrationError => Self::PathMigrationError,
        }
    }
}

/// File from which an application reads events: a completion channel, or a context's asynchronous events. No function
/// blocks, and no event is lost, but for those of the port ([`EventType::is_of_port`]): one that says the same as an unread one
/// may take its place.
pub trait EventSink: Send + Sync + Debug {
    /// Adds a completion event of the completion queue with this handle.
    fn completion(&self, cq: u64);

    /// Adds an asynchronous event of the object with this handle, or of the port with this number.
    fn async_event(&self, element: u64, event_type: EventType);

    /// Removes the events of `element` that have not been read; returns how many there were.
    fn discard(&self, element: u64) -> usize;

    /// The application has read: there may be room for more.
    fn refill(&self);

    /// Ends the file: readers get what is there, and then the end of the file.
    fn end(&self);
}
