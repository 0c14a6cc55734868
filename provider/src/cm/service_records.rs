//! Services that an id has asked subnet administration for.

use urxe_wire::mad::sa::Record;

/// A `ServiceRecord`, which is a `struct ib_user_service_rec` as well.
pub(crate) type ServiceRecord = [u8; Record::Service.len()];

/// Services of an id.
#[derive(Default)]
pub(crate) enum Services {
    /// Not asked for.
    #[default]
    Unknown,
    /// Asked for.
    Asked,
    /// Records as subnet administration has told them.
    Known(Vec<ServiceRecord>),
}
