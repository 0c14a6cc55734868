//! The page in a browser: search, filters, steps, and 100 000 packets. `page_tests.js` uses it as a reader does.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use urxe_pcapng::Captured;
use urxe_wire::{Operation, Qpn};

use super::tests::{SEQUENCE, ladder, nak, packet, request};
use super::{html, pairs};

const SCRIPT: &str = include_str!("page_tests.js");

/// Names that Chromium has on distributions.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    BROWSERS.iter().find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file()))
}

/// Time as fast as nothing is left to do, in Chromium.
const VIRTUAL_TIME: &str = "--virtual-time-budget=60000";

/// Opens the page in a browser, and returns what `page_tests.js` saw; `None` without a browser.
fn seen(page: &str, is_dark: bool, width: u32) -> Option<Value> {
    let scheme = if is_dark { 0 } else { 1 };
    let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
    let seen = opened(page, SCRIPT, &[VIRTUAL_TIME, &format!("--window-size={width},900"), &scheme])?;
    assert_eq!(seen["errors"], serde_json::json!([]), "{seen:#}");
    Some(seen)
}

/// Opens the page in a browser, and returns what the script wrote to the element `seen`; `None` without a browser.
fn opened(page: &str, script: &str, options: &[&str]) -> Option<Value> {
    let Some(browser) = browser() else {
        eprintln!("not run: there is no Chromium here ({})", BROWSERS.join(", "));
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let (before, after) = page.rsplit_once("</body>").unwrap();
    std::fs::write(&file, format!("{before}<script>{script}</script></body>{after}")).unwrap();
    let output = Command::new(browser)
        // Its own sandbox wants rights that containers seldom have.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
        .args(options)
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .env("HOME", folder.path())
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let (_, seen) = dom.rsplit_once("id=\"seen\">").unwrap_or_else(|| panic!("the script did not end: {said}"));
    Some(serde_json::from_str(seen.split_once("</script>").unwrap().0).unwrap())
}

/// 100 000 packets of one exchange, of which some are lost and sent again, and three packets of another one.
fn page() -> String {
    let mut packets: Vec<Captured> = (0..99_990_u32)
        .map(|psn| {
            let operation = match psn % 10 {
                0 => Operation::WriteFirst,
                9 => Operation::WriteLast,
                _ => Operation::WriteMiddle,
            };
            Captured { len: 4096, ..packet(u64::from(psn) * 3, true, operation, psn) }
        })
        .collect();
    packets[700].comments.push("URXE_FAULTS: dropped, it never left".to_owned());
    packets.push(nak(300_000, 700, SEQUENCE));
    packets.extend(
        (0..9).map(|place| packet(300_010 + place, true, Operation::WriteMiddle, 700 + u32::try_from(place).unwrap())),
    );
    let other = (0..3).map(|psn| {
        let mut packet = request(u64::from(psn), psn);
        packet.bth.dest_qp = Qpn::new(0x33);
        packet
    });
    let other: Vec<Captured> = other.collect();
    let pairs = pairs::find(&other);
    let ladders = [ladder(&packets), super::ladder::Ladder::new(&pairs[0], &other)];
    html::draw(&ladders, &["it.pcapng".to_owned()], &["it.pcapng ends within a record".to_owned()])
}

#[test]
fn readers_find_their_way_in_100_000_packets() {
    let Some(seen) = seen(&page(), false, 1400) else { return };
    let text =
        |place: &str| seen.pointer(place).and_then(Value::as_str).unwrap_or_else(|| panic!("no {place}: {seen:#}"));
    let rows = |place: &str| seen.pointer(place).and_then(Value::as_u64).unwrap();
    assert_eq!(text("/start/count"), "100,000 packets");
    assert_eq!(text("/start/first"), "RC RDMA WRITE First PSN=0 Len=4096");
    for place in ["/start/rows", "/apart/rows", "/again/rows", "/trouble/rows"] {
        assert!((2..100).contains(&rows(place)), "only rows on the screen are made: {place} {seen:#}");
    }
    assert!(text("/end").contains("PSN=708") || text("/end").contains("..708"), "{seen:#}");
    assert_eq!(text("/search/count"), "1 of 100,000 packets");
    assert!(text("/search/first").contains("PSN=77777 "), "{seen:#}");
    assert_eq!((text("/search_notes/count"), rows("/search_notes/rows")), ("1 of 100,000 packets", 1));
    assert_eq!(text("/opcode/count"), "1 of 100,000 packets");
    assert!(text("/opcode/first").contains("Nak PSN Sequence Error"), "{seen:#}");
    // The lost one, the NAK, and nine that were sent again.
    assert_eq!(text("/trouble/count"), "11 of 100,000 packets");
    assert!(text("/next").contains("701 of 100000") && text("/next").contains("URXE_FAULTS: dropped"), "{seen:#}");
    assert!(text("/after_next").contains("99991 of 100000"), "{seen:#}");
    assert_eq!(seen["previous"], seen["next"]);
    assert!(text("/chosen").contains("PSN=700") && seen["is_closed"] == true, "{seen:#}");
    assert!(text("/clicked").contains(" of 100000: "), "{seen:#}");
    assert_eq!((rows("/exchanges"), rows("/filtered_decimal")), (2, 1));
    assert!(text("/filtered").contains("QP 0x33") && !text("/filtered").contains("0x11"), "{seen:#}");
    assert_eq!((text("/opened/count"), text("/opened/hash")), ("3 packets", "#2"));
    assert!(text("/opened/lanes").contains("QP 0x33"), "{seen:#}");
}

/// Prints the time: it depends on the machine.
#[test]
fn a_page_of_100_000_packets_opens() {
    /// Milliseconds since the browser began to open the page, when its rows are there and nothing is left to load.
    const LOADED: &str = r#"addEventListener('load', () => {
        const rows = document.querySelectorAll('#stage .row').length;
        const seen = `{"ms": ${performance.now()}, "rows": ${rows}}`;
        document.body.insertAdjacentHTML('beforeend', `<script type="application/json" id="seen">${seen}<\/script>`);
    });"#;
    let page = page();
    let Some(seen) = opened(&page, LOADED, &["--window-size=1400,900"]) else { return };
    assert!(seen["rows"].as_u64().unwrap() > 2, "{seen:#}");
    println!("{:.0} ms until the page of 100 000 packets is there, {} bytes", seen["ms"].as_f64().unwrap(), page.len());
}

#[test]
fn the_page_is_light_or_dark_as_the_reader_likes() {
    let page = page();
    for (is_dark, width) in [(false, 1400), (true, 700)] {
        let Some(seen) = seen(&page, is_dark, width) else { return };
        let brightness = |place: usize| -> u32 {
            let colour = seen["colours"][place].as_str().unwrap();
            colour.split(|letter: char| !letter.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok()).sum()
        };
        assert_eq!(seen["is_dark"], is_dark, "{seen:#}");
        assert_eq!(brightness(0) < brightness(1), is_dark, "background and text: {seen:#}");
        assert_eq!(seen["outside"], 0, "{seen:#}");
    }
}
