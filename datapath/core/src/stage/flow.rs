//! Connections. In: a packet of an endpoint that has stateful policies. Out: the slots that match once it is
//! known who opened the connection.
//!
//! A stateful policy's direction is that of the connection's first packet; its rules are asked about that
//! packet's addresses and ports, for replies too. The table has a fixed size. A connection that finds no room
//! counts as opened by either side, so that a policy takes too much rather than too little, and is counted.
//!
//! Later fragments have no ports: they belong to the connection of the last first fragment between the same addresses.

use super::packet::{Counters, State, Tables};
use super::parse::{Facts, Transport};
use super::{any_ruleset, slots_of};
use crate::abi::{Direction, EndpointRow, FlowKey, FlowRow, Mode, Reason};
use crate::wire::{icmp, icmpv6};

const FIN: u32 = 0x01;
const SYN: u32 = 0x02;
const RST: u32 = 0x04;
const ACK: u32 = 0x10;
/// How far behind the time of a connection's last packet may be.
const SECOND: u64 = 1_000_000_000;

/// Replaces the stateful slots of `own`, the slots that match by the packet's own direction.
#[inline(always)]
pub(super) fn with_connections<T: Tables + State + Counters>(
    direction: Direction,
    ifindex: u32,
    row: &EndpointRow,
    facts: &Facts,
    own: u64,
    tables: &T,
) -> u64 {
    if matches!(facts.mode, Mode::Other) {
        return own;
    }
    let opener = tables.opener(direction, ifindex, facts);
    if opener == Some(direction) {
        return own;
    }
    let stateful = any_ruleset(row).and_then(|index| tables.ruleset(index)).map_or(0, |rules| rules.stateful);
    let other = slots_of(row, direction.reverse(), &facts.reversed(), tables) & stateful;
    match opener {
        Some(_) => own & !stateful | other,
        None => own | other,
    }
}

/// Keeps in mind that a connection came from outside.
#[inline(always)]
pub(super) fn note_question<T: State + Counters>(ifindex: u32, facts: &Facts, tables: &T) {
    if matches!(facts.transport, Transport::Ports) {
        let _ = tables.opener(Direction::Ingress, ifindex, facts);
    }
}

/// Whether what a pod sends belongs to a connection that was opened from outside.
#[inline(always)]
pub(super) fn is_answer<T: State + Counters>(ifindex: u32, facts: &Facts, tables: &T) -> bool {
    match facts.transport {
        Transport::Ports => {
            matches!(tables.opener(Direction::Egress, ifindex, facts), Some(Direction::Ingress))
        }
        Transport::Icmp => {
            if facts.fragment.is_marked() {
                let _ = tables.opener(Direction::Egress, ifindex, facts);
            }
            is_echo_reply(facts)
        }
        Transport::Portless => {
            facts.fragment.is_later()
                && matches!(tables.opener(Direction::Egress, ifindex, facts), Some(Direction::Ingress))
        }
    }
}

#[inline(always)]
const fn is_echo_reply(facts: &Facts) -> bool {
    matches!((facts.source_port >> 8) as u8, icmp::ECHO_REPLY | icmpv6::ECHO_REPLY)
}

/// Who opened the connection; `None` when that could not be kept.
#[inline(always)]
pub fn opener<T: State + Counters>(
    direction: Direction,
    ifindex: u32,
    facts: &Facts,
    tables: &T,
) -> Option<Direction> {
    let mut key = key(direction, ifindex, facts);
    let flags = facts.tcp_flags as u32;
    let now = tables.now();
    let found = match tables.flow(&key) {
        Some(row) if !is_new(&row, flags) => {
            if now.wrapping_sub(row.seen) > SECOND || row.tcp_flags | flags != row.tcp_flags {
                tables.touch_flow(&key, &FlowRow { seen: now, tcp_flags: row.tcp_flags | flags, ..row });
            }
            Some(Direction::from_index(row.opener))
        }
        _ => {
            // The answer to a SYN that was not seen is no opener.
            let opener = if flags & (SYN | ACK) == SYN | ACK { direction.reverse() } else { direction };
            if tables.open_flow(&key, &FlowRow { seen: now, opener: opener.index(), tcp_flags: flags }) {
                Some(opener)
            } else {
                tables.count_reason(Reason::FlowTableFull);
                None
            }
        }
    };
    if !facts.fragment.is_marked() || matches!(facts.transport, Transport::Portless) {
        return found;
    }
    // ICMP has no ports, so the kind of the first fragment is all that tells its later ones.
    let opener = match facts.transport {
        Transport::Icmp if is_echo_reply(facts) => direction.reverse(),
        Transport::Icmp => direction,
        _ => found?,
    };
    key.ports = 0;
    let _ = tables.open_flow(&key, &FlowRow { seen: now, opener: opener.index(), tcp_flags: 0 });
    Some(opener)
}

/// A SYN on a connection that has ended begins another one.
#[inline(always)]
const fn is_new(row: &FlowRow, flags: u32) -> bool {
    row.tcp_flags & (FIN | RST) != 0 && flags & (SYN | ACK) == SYN
}

#[inline(always)]
fn key(direction: Direction, ifindex: u32, facts: &Facts) -> FlowKey {
    let ports = matches!(facts.transport, Transport::Ports);
    let (source, destination) =
        if ports { (facts.source_port as u32, facts.destination_port as u32) } else { (0, 0) };
    let source_address = [facts.source.high, facts.source.low];
    let destination_address = [facts.destination.high, facts.destination.low];
    let (local, remote, local_port, remote_port) = match direction {
        Direction::Ingress => (destination_address, source_address, destination, source),
        Direction::Egress => (source_address, destination_address, source, destination),
    };
    FlowKey {
        local,
        remote,
        ports: local_port << 16 | remote_port,
        protocol: facts.protocol as u32,
        ifindex,
        pad: 0,
    }
}
