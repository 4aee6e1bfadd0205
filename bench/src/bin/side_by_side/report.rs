//! The tables.
#![allow(clippy::print_stdout, reason = "the result is what is printed")]

pub use podwire_bench::report::*;
use podwire_bench::spread::Spread;

use crate::forwarding::Row as Forwarding;
use crate::per_packet::Row;
use crate::switching::Row as Switching;
use crate::tcp::Row as Stream;

/// The table of the measurement per packet.
pub fn per_packet(rows: &[Row]) {
    let head = ["P25", "MEDIAN", "P75", "OFFERED", "PASSED", "COPIES"];
    let [p25, median, p75, offered, passed, copies] = head;
    println!(
        "{:<40} {p25:>7} {median:>7} {p75:>7} {offered:>10} {passed:>10} {copies:>10}  LOSS",
        "AT THE HOOK"
    );
    for row in rows {
        println!(
            "{:<40} {:>7.0} {:>7.0} {:>7.0} {:>10} {:>10} {:>10}  {}",
            row.name,
            row.added.p25,
            row.added.median,
            row.added.p75,
            row.offered,
            row.passed,
            row.copies,
            row.remark()
        );
    }
    if let Some(base) = rows.first() {
        let all = Spread::of(base.samples.iter().copied());
        println!(
            "\nThe whole way with nothing at the hook: {:.0} ns (P25 {:.0}, P75 {:.0}).",
            all.median, all.p25, all.p75
        );
    }
}

/// The table of TCP throughput.
pub fn tcp(rows: &[Stream]) {
    println!("{:<48} {:>7} {:>7} {:>7} {:>7}  RETRANSMITS", "GBIT/S", "P25", "MEDIAN", "P75", "COPIED");
    for row in rows {
        let (rate, copied) = (row.rate, row.copied.median);
        println!(
            "{:<48} {:>7.1} {:>7.1} {:>7.1} {copied:>7.2}  {:>11}",
            row.name, rate.p25, rate.median, rate.p75, row.retransmits
        );
    }
}

/// The table of forwarding from pod to pod.
pub fn forwarding(rows: &[Forwarding]) {
    println!(
        "{:<48} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9}  RETRANSMITS",
        "GBIT/S, ROUND TRIP IN US", "P25", "MEDIAN", "P75", "TCP-P50", "TCP-P99", "UDP-P50", "UDP-P99"
    );
    for row in rows {
        let median = |figure: &crate::forwarding::Figure| figure.spread.median;
        println!(
            "{:<48} {:>7.2} {:>7.2} {:>7.2} {:>9.1} {:>9.1} {:>9.1} {:>9.1}  {:>11}",
            format!("{}: {}", row.way, row.name),
            row.rate.spread.p25,
            median(&row.rate),
            row.rate.spread.p75,
            median(&row.tcp_p50),
            median(&row.tcp_p99),
            median(&row.udp_p50),
            median(&row.udp_p99),
            row.retransmits
        );
    }
}

/// The table of what a switch and podwire deliver at an offer.
pub fn switching(rows: &[Switching]) {
    println!(
        "{:<56} {:>9} {:>9} {:>9} {:>9} {:>10}  LOSS",
        "PACKETS PER SECOND", "P25", "DELIVERED", "P75", "COPIES", "OFFERED"
    );
    for row in rows {
        let originals = row.offered_packets.saturating_sub(row.delivered_packets);
        let copies = row.offered_packets.saturating_sub(row.copied_packets) * u64::from(row.wants_copies);
        let percent = |lost: u64| lost as f64 * 100.0 / row.offered_packets.max(1) as f64;
        println!(
            "{:<56} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>10}  {:.1} % of packets, {:.1} % of copies",
            row.name,
            row.delivered.p25,
            row.delivered.median,
            row.delivered.p75,
            row.copied.median,
            row.offered_packets,
            percent(originals),
            percent(copies)
        );
    }
}
