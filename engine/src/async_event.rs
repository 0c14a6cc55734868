//! Affiliated asynchronous events (IBA 11.6.3).

/// An affiliated asynchronous event of a queue pair (IBA 11.6.3; `ibv_get_async_event(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum AsyncEvent {
    QpFatal,
    QpRequestError,
    QpAccessError,
    CommunicationEstablished,
    SqDrained,
    LastWqeReached,
    PathMigrated,
    PathMigrationError,
}
