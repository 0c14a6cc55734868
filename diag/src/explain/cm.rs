//! Failures of rdma_cm: commands that are refused, and events that tell of one.

use std::io;
use std::net::SocketAddr;

use super::line::Line;

/// An event of rdma_cm, as the application gets it (`rdma_get_cm_event(3)`).
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// Number of the event (`enum rdma_cm_event_type`).
    pub number: u32,
    /// Status of the event: an errno, negative, or a reason of the peer's.
    pub status: i32,
    /// The id's own address.
    pub from: Option<SocketAddr>,
    /// The peer's address.
    pub to: Option<SocketAddr>,
    /// The devices and their interfaces, such as `urxe0 is on lo`.
    pub devices: String,
}

const ADDR_ERROR: u32 = 1;
const UNREACHABLE: u32 = 7;
const REJECTED: u32 = 8;
const DEVICE_REMOVAL: u32 = 11;
/// Events that tell of a failure: those, and the errors of routes, connections, groups and address lookups.
const FAILURES: [u32; 8] = [ADDR_ERROR, 3, 6, UNREACHABLE, REJECTED, DEVICE_REMOVAL, 13, 17];

/// Explains an event that tells of a failure; `event` is asked for only where explanations are on.
pub fn cm_event(number: u32, event: impl FnOnce() -> CmEvent) {
    let Some(format) = super::wanted().filter(|_| FAILURES.contains(&number)) else { return };
    let event = event();
    let Some(entry) = urxe_explain::cm::EVENTS.by_number(number) else { return };
    let (why, remedy) = cause(&event).unwrap_or_else(|| (entry.cause.to_owned(), entry.remedy.to_owned()));
    let way = match (event.from, event.to) {
        (Some(from), Some(to)) => format!(", from {from} to {to}"),
        (None, Some(to)) => format!(", to {to}"),
        (Some(from), None) => format!(", at {from}"),
        (None, None) => String::new(),
    };
    let what = format!("{}, status {}{way}", entry.name, event.status);
    Line { kind: "cm", code: entry.name, what: &what, why: &why, remedy: &remedy, ..Line::default() }.print(format);
}

/// Cause and remedy of an event, by its status and addresses.
fn cause(event: &CmEvent) -> Option<(String, String)> {
    let to = event.to.map_or_else(|| "the address".to_owned(), |to| to.to_string());
    let told = |why: String, remedy: &str| Some((why, remedy.to_owned()));
    let listen = "start the listening side first; compare port and port space, and the address that it is bound to";
    match (event.number, -event.status) {
        (ADDR_ERROR, libc::ENETUNREACH) => {
            told(format!("no route leads to {to}"), "check the address, and what `ip route get ADDRESS` says")
        }
        (ADDR_ERROR, libc::ENODEV) => told(
            format!("the way to {to} is not through an interface with a device: {}", event.devices),
            "put a device on the interface of `ip route get ADDRESS`: --netdev (URXE_NETDEV=eth0), or auto",
        ),
        (UNREACHABLE, libc::ETIMEDOUT) => told(
            format!("{to} does not answer"),
            "start the peer first; it needs a device on that address (--netdev there), and UDP port 4791 must pass both ways",
        ),
        // Statuses of a SIDR reply (IBA 12.11.2).
        (UNREACHABLE, -1) => told(format!("nobody listens at {to} for datagrams"), listen),
        (UNREACHABLE, -2) => told(
            format!("the application at {to} has refused"),
            "look at the private data of the event, and at the peer's own messages",
        ),
        (REJECTED, _) => {
            let reason = urxe_explain::cm::REJECTIONS.by_number(u32::try_from(event.status).ok()?)?;
            let why = match event.status {
                8 => format!("nobody listens at {to}"),
                28 => format!("the application at {to} has refused, by rdma_reject or by destroying its id"),
                _ => format!("{to} has refused: {} ({})", reason.meaning, reason.name),
            };
            told(why, if event.status == 8 { listen } else { reason.remedy })
        }
        (DEVICE_REMOVAL, _) if crate::armed::has_taken_out() => {
            told("URXE_FAULTS has taken the device out".to_owned(), "see how the program takes it")
        }
        _ => None,
    }
}

/// Explains that a function of librdmacm failed.
pub fn cm_failed(function: &str, errno: i32) {
    super::verbs::explain("cm", function, errno, || {
        match u32::try_from(errno).ok().and_then(|number| urxe_explain::errno::TABLE.by_number(number)) {
            Some(entry) => (format!("{} ({})", entry.meaning, entry.cause), entry.remedy.to_owned()),
            None => (io::Error::from_raw_os_error(errno).to_string(), format!("see the manual page of {function}")),
        }
    });
}
