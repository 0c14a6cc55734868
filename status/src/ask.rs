//! Asking every device of this network namespace.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use crate::NAMES;

/// More than a process with every queue pair it can have would say.
const LONGEST: u64 = 64 << 20;

/// What was found out.
#[derive(Debug, Default)]
pub struct Answers {
    /// One JSON object for each device of each process.
    pub reports: Vec<String>,
    /// Devices of other users, and of processes that do not answer.
    pub silent: usize,
}

/// Asks all devices, each for at most `patience` until it says nothing more.
///
/// # Errors
/// The sockets cannot be listed.
pub fn ask_all(patience: Duration) -> io::Result<Answers> {
    let sockets = std::fs::read("/proc/net/unix")?;
    // Others may put anything into their names.
    let sockets = String::from_utf8_lossy(&sockets);
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    // A connection that is being answered shows up under the same name.
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with(NAMES)).collect();
    let mut answers = Answers::default();
    for name in names {
        match ask(name, patience) {
            Ok(Some(report)) => answers.reports.push(report),
            Ok(None) => {}
            Err(_) => answers.silent += 1,
        }
    }
    Ok(answers)
}

/// What one device says; `None` if it has gone meanwhile.
fn ask(name: &str, patience: Duration) -> io::Result<Option<String>> {
    let stream = match UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
        stream => stream?,
    };
    stream.set_read_timeout(Some(patience))?;
    let mut report = String::new();
    stream.take(LONGEST).read_to_string(&mut report)?;
    if report.is_empty() {
        // It hung up: not for us.
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(Some(report))
}

/// The counters of the device in a report, which come before anything else that is called so.
pub fn counters(report: &str) -> impl Iterator<Item = (&str, u64)> {
    let inside =
        report.split_once("\"counters\":{").and_then(|(_, rest)| rest.split_once('}')).map(|(inside, _)| inside);
    inside.unwrap_or_default().split(',').filter_map(|counter| {
        let (name, value) = counter.split_once(':')?;
        Some((name.trim_matches('"'), value.parse().ok()?))
    })
}

/// A text among the members of a report's object, as it is written there (with its escapes).
#[must_use]
pub fn text<'a>(report: &'a str, member: &str) -> Option<&'a str> {
    // In a value the quotation mark would be escaped.
    let (_, rest) = report.split_once(&format!("\"{member}\":\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"pid":7,"program":"\"device\":\"x","device":"urxe0","netdev":"lo","counters":{"rx_packets":5,"icrc_err":0},"qps":[{"qpn":1,"counters":{"rx_packets":9}}]}"#;

    #[test]
    fn members_of_a_report() {
        assert_eq!(counters(REPORT).collect::<Vec<_>>(), [("rx_packets", 5), ("icrc_err", 0)]);
        assert_eq!((text(REPORT, "device"), text(REPORT, "netdev")), (Some("urxe0"), Some("lo")));
    }

    #[test]
    fn what_is_no_report_has_none() {
        for text in ["", "{}", "\"counters\":{", "\"counters\":{}", "\"counters\":{\"a\":x,b,\"c\"}"] {
            assert_eq!(counters(text).count(), 0, "{text}");
        }
        assert_eq!(text("{\"device\":\"", "device"), None);
    }
}
