use urxe_wire::Bitmap;

use super::*;
use crate::qp::send::reordering::Reordering;

const ROUND_TRIP: u64 = 10_000;

fn timing(now: u64) -> Timing {
    Timing { now: Instant::from_nanos(now), round_trip: ROUND_TRIP, mean: ROUND_TRIP }
}

/// A scoreboard of 16 packets, the first of which was lost and sent again.
fn first_sent_again(reordering: &mut Reordering) -> Scoreboard {
    let mut board = Scoreboard::default();
    board.begin(Psn::new(0), Psn::new(16), Psn::new(16), &VecDeque::new(), |_| 0);
    assert!(board.requests_kept(Psn::new(0), Bitmap::new(&[0xF0, 0, 0, 0]).unwrap(), &timing(0), reordering));
    assert_eq!(board.find_lost(&timing(0), reordering), 1);
    assert!(!board.is_over(false), "one is to be sent again");
    board.sent_again(Psn::new(0), 1, timing(0).now, 0);
    assert!(!board.is_over(false), "it is under way");
    board
}

/// While packets stream there is news whenever an acknowledgement comes.
#[test]
fn a_scoreboard_ends_when_the_gap_is_filled() {
    let mut reordering = Reordering::default();
    let mut board = first_sent_again(&mut reordering);
    (0..16).for_each(|_| board.sent(1, false, 0));
    // All that were sent before the first was sent again.
    board.carried_out(Psn::new(16), &timing(ROUND_TRIP), &mut reordering);
    board.forget(16);
    assert_eq!(board.outstanding(), 16);
    assert!(board.has_news() && board.is_over(false));
    assert!(!board.is_over(true), "several paths: what has arrived is not counted yet");
}

#[test]
fn a_packet_overtaken_by_one_sent_again_keeps_the_scoreboard() {
    let mut reordering = Reordering::default();
    let mut board = first_sent_again(&mut reordering);
    board.sent(1, false, 0);
    board.carried_out(Psn::new(15), &timing(ROUND_TRIP), &mut reordering);
    board.forget(15);
    assert!(!board.is_over(false), "the last packet was sent before");
    assert_eq!(board.find_lost(&timing(ROUND_TRIP), &mut reordering), 0, "one alone may be late");
    let late = timing(ROUND_TRIP + reordering.window(ROUND_TRIP));
    assert!(!board.is_over(false) && board.deadline() == Some(late.now));
    board.handle_timeout(late.now);
    assert_eq!(board.find_lost(&late, &mut reordering), 1);
    assert_eq!(board.next_lost(), Some((Psn::new(15), 1)));
}

/// A packet that the responder does not have after all may be overtaken already.
#[test]
fn an_arrival_that_is_taken_back_is_news() {
    let mut board = first_sent_again(&mut Reordering::default());
    assert!(!board.has_news());
    board.undeliver(Psn::new(9));
    assert!(!board.has_news(), "it has not arrived");
    board.undeliver(Psn::new(2));
    assert!(board.has_news());
}

/// An acknowledgement tells of the requests between those that selective ones have told of.
#[test]
fn an_acknowledgement_fills_what_selective_ones_left_out() {
    for start in [0, 0xFF_FFE8] {
        let (mut board, mut reordering) = (Scoreboard::default(), Reordering::default());
        let psn = |nth| Psn::new(start).add(nth);
        board.begin(psn(0), psn(80), psn(80), &VecDeque::new(), |_| 0);
        // From 1 to 4, and from 32 to 64.
        let bitmap = [0xF0, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF];
        assert!(board.requests_kept(psn(0), Bitmap::new(&bitmap).unwrap(), &timing(0), &mut reordering));
        assert_eq!((board.acknowledged(), board.in_flight()), (0, 80 - 37));
        board.carried_out(psn(70), &timing(0), &mut reordering);
        assert_eq!((board.acknowledged(), board.in_flight()), (70, 10));
        board.forget(70);
        assert_eq!((board.outstanding(), board.in_flight(), board.acknowledged()), (10, 10, 0));
        assert!(board.is_carried_out(psn(69)) && !board.is_carried_out(psn(70)));
        board.carried_out(psn(80), &timing(0), &mut reordering);
        assert_eq!((board.acknowledged(), board.in_flight()), (10, 0));
    }
}

/// The next gap finds the room of the one before, and nothing else of it.
#[test]
fn a_scoreboard_begins_anew_in_the_same_room() {
    let mut board = first_sent_again(&mut Reordering::default());
    (0..100).for_each(|_| board.sent(1, false, 3));
    let size = board.size();
    board.begin(Psn::new(50), Psn::new(58), Psn::new(60), &VecDeque::new(), |_| 1);
    assert_eq!(board.size(), size);
    assert_eq!((board.outstanding(), board.lost(), board.in_flight()), (10, 2, 8));
    assert_eq!((board.next_lost(), board.path(Psn::new(59))), (Some((Psn::new(58), 1)), 1));
    assert!(!board.has_news() && board.acknowledged() == 0);
    assert_eq!(board.take_paths(), (ByPath::default(), ByPath::default()));
}

/// Packets of a slow path may be late by as much as paths differ; what its own packets have overtaken is lost.
#[test]
fn packets_of_another_path_say_little() {
    let mut reordering = Reordering::default();
    reordering.expect();
    let mut board = Scoreboard::default();
    board.begin(Psn::new(0), Psn::new(16), Psn::new(16), &VecDeque::new(), |psn| u8::from(psn.get() < 8));
    // All of the fast path have come.
    assert!(board.requests_kept(Psn::new(0), Bitmap::new(&[1, 0xFE, 0, 0]).unwrap(), &timing(0), &mut reordering));
    assert_eq!(board.find_lost(&timing(0), &mut reordering), 0);
    let unheard = reordering.window_across(ROUND_TRIP, 1);
    assert_eq!(board.deadline(), Some(timing(unheard).now));
    // The first and the third of the slow path come, late.
    let late = unheard - 1;
    board.carried_out(Psn::new(1), &timing(late), &mut reordering);
    assert!(board.requests_kept(Psn::new(1), Bitmap::new(&[0x80, 0, 0, 0]).unwrap(), &timing(late), &mut reordering));
    assert_eq!(board.find_lost(&timing(late), &mut reordering), 0);
    let window = reordering.window(ROUND_TRIP);
    assert!(window < late && reordering.window_across(ROUND_TRIP, 1) > late);
    assert_eq!(board.deadline(), Some(timing(late + window).now));
    // The second is lost, and those behind the third are not.
    assert_eq!(board.find_lost(&timing(late + window), &mut reordering), 1);
    assert_eq!(board.next_lost(), Some((Psn::new(1), 1)));
}

/// The selective acknowledgement that told of those behind may be lost, and the ACK that left with it arrive.
#[test]
fn an_ack_of_what_was_sent_again_says_nothing_of_others() {
    for by_ack in [true, false] {
        let mut reordering = Reordering::default();
        let mut board = first_sent_again(&mut reordering);
        match by_ack {
            true => board.carried_out_by_ack(Psn::new(1), &timing(ROUND_TRIP), &mut reordering),
            false => board.carried_out(Psn::new(1), &timing(ROUND_TRIP), &mut reordering),
        }
        let lost = board.find_lost(&timing(ROUND_TRIP), &mut reordering);
        assert_eq!(lost > 0, !by_ack, "{lost}");
    }
}

/// Of a packet that was sent twice nobody knows which one has come. The first may be late by as much as paths differ.
#[test]
fn a_packet_sent_twice_says_nothing_of_its_second_path() {
    let mut reordering = Reordering::default();
    reordering.expect();
    let mut board = Scoreboard::default();
    board.begin(Psn::new(0), Psn::new(48), Psn::new(48), &VecDeque::new(), |psn| u8::try_from(psn.get() / 16).unwrap());
    board.lose_front();
    board.sent_again(Psn::new(0), 1, timing(0).now, 1);
    // Later than half a round trip.
    board.carried_out(Psn::new(1), &timing(ROUND_TRIP), &mut reordering);
    assert_eq!(board.find_lost(&timing(ROUND_TRIP), &mut reordering), 0);
    let later = ROUND_TRIP + reordering.window(ROUND_TRIP);
    assert_eq!(board.find_lost(&timing(later), &mut reordering), 0, "those of path 1 are on their way");
}
