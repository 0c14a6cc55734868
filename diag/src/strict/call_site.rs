//! Call sites: the places in the program that called a verb (`URXE_STRICT=backtrace`).

use std::backtrace::Backtrace;

use urxe_net::cancellation::CancelGuard;

/// Frames that are shown.
const MOST: usize = 4;

/// The frames of the program that led here, innermost first.
pub(super) fn here() -> String {
    // It reads the program's files.
    let _guard = CancelGuard::new();
    callers(&Backtrace::force_capture().to_string())
}

/// Returns the frames of a backtrace above libibverbs and urxe: the application's.
///
/// Its format is not promised (`std::backtrace`); if it changes, there is nothing to show.
fn callers(backtrace: &str) -> String {
    let mut frames: Vec<String> = Vec::new();
    for line in backtrace.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            if let Some(frame) = frames.last_mut().filter(|frame| !frame.contains(" (")) {
                *frame = format!("{frame} ({place})");
            }
        } else if let Some((_, name)) = line.split_once(": ") {
            frames.push(name.to_owned());
        }
    }
    let ours = frames.iter().rposition(|frame| is_ours(frame));
    let outside = frames.into_iter().skip(ours.map_or(0, |at| at + 1));
    let named = outside.filter(|frame| !is_between(frame));
    let shown: Vec<String> = named.take(MOST).collect();
    if shown.is_empty() { "an unknown place".to_owned() } else { shown.join(" < ") }
}

/// A function of this library: by its name, or, where line tables are all there is to know and names lack their paths, by
/// its file.
fn is_ours(frame: &str) -> bool {
    const ROOT: &str = env!("CARGO_MANIFEST_DIR");
    const CRATES: [&str; 5] = ["diag", "provider", "runtime", "engine", "net"];
    let root = ROOT.trim_end_matches("diag").trim_start_matches('/');
    let in_our_sources = || CRATES.iter().any(|name| frame.contains(&format!("{root}{name}/src/")));
    let name = frame.trim_start_matches('<');
    name.starts_with("urxe::") || name.starts_with("urxe_") || in_our_sources()
}

/// A function of libibverbs, or one without a name.
fn is_between(frame: &str) -> bool {
    let name = frame.trim_start_matches('_');
    name.starts_with("ibv_") || name.starts_with("<unknown>") || name.starts_with("rdma_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_begins_where_we_end() {
        let backtrace = "   0: std::backtrace_rs::backtrace::libunwind::trace\n             at /rustc/x.rs:1:5\n   \
            1: urxe_diag::strict::call_site::here\n             at ./diag/src/a.rs:9:1\n   2: core::ops::call\n   \
            3: urxe::edge::post::post_send\n   4: __ibv_post_send_1_1\n   5: send_all\n             at ./app.c:12:3\n   \
            6: main\n   7: <unknown>\n   8: _start\n";
        assert_eq!(callers(backtrace), "send_all (./app.c:12:3) < main < _start");
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../provider/src/edge/post.rs").replace("diag/../", "");
        let backtrace = format!(
            "   0: here\n             at .{file}:9:1\n   1: post_send\n             at .{file}:7:1\n   2: main\n"
        );
        assert_eq!(callers(&backtrace), "main");
        assert_eq!(callers(""), "an unknown place");
    }

    #[test]
    fn this_test_is_found() {
        // In a test, everything is ours but what called it.
        assert!(!here().is_empty());
    }
}
