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

/// Who opened a connection: as [`FlowRow::opener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener(pub u32);

impl Opener {
    /// The direction of the connection.
    #[inline(always)]
    pub const fn side(self) -> Direction {
        Direction::from_index(self.0 & !FlowRow::GUESSED)
    }

    /// Whether it was seen that the connection was opened from outside.
    #[inline(always)]
    const fn is_outside(self) -> bool {
        self.0 == Direction::Ingress.index()
    }
}

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
    let opener = tables.opener(direction, ifindex, facts).map(Opener::side);
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
    if matches!(facts.transport, Transport::Ports) || is_echo_request(facts) {
        let _ = tables.opener(Direction::Ingress, ifindex, facts);
    }
}

/// Whether what a pod sends belongs to a connection that was opened from outside. The pod's own word for that does not
/// count: an answer to a question that was not seen is none.
#[inline(always)]
pub(super) fn is_answer<T: State + Counters>(ifindex: u32, facts: &Facts, tables: &T) -> bool {
    let known = match facts.transport {
        Transport::Ports => true,
        Transport::Icmp => is_echo_reply(facts) || facts.fragment.is_marked(),
        Transport::Portless => facts.fragment.is_later(),
    };
    let opened = known && tables.opener(Direction::Egress, ifindex, facts).is_some_and(Opener::is_outside);
    opened && (!matches!(facts.transport, Transport::Icmp) || is_echo_reply(facts))
}

#[inline(always)]
const fn is_echo_request(facts: &Facts) -> bool {
    let kind = (facts.source_port >> 8) as u8;
    matches!(facts.transport, Transport::Icmp) && matches!(kind, icmp::ECHO_REQUEST | icmpv6::ECHO_REQUEST)
}

#[inline(always)]
const fn is_echo_reply(facts: &Facts) -> bool {
    let kind = (facts.source_port >> 8) as u8;
    matches!(facts.transport, Transport::Icmp) && matches!(kind, icmp::ECHO_REPLY | icmpv6::ECHO_REPLY)
}

/// Who opened the connection; `None` when that could not be kept.
#[inline(always)]
pub fn opener<T: State + Counters>(
    direction: Direction,
    ifindex: u32,
    facts: &Facts,
    tables: &T,
) -> Option<Opener> {
    let mut key = key(direction, ifindex, facts);
    let flags = facts.tcp_flags as u32;
    let now = tables.now();
    let found = match tables.flow(&key) {
        Some(row) if !is_new(&row, facts) => {
            if now.wrapping_sub(row.seen) > SECOND || row.tcp_flags | flags != row.tcp_flags {
                tables.touch_flow(&key, &FlowRow { seen: now, tcp_flags: row.tcp_flags | flags, ..row });
            }
            Some(row.opener)
        }
        _ => {
            // The answer to a question that was not seen is no opener.
            let answers = flags & (SYN | ACK) == SYN | ACK || is_echo_reply(facts);
            let opener =
                if answers { direction.reverse().index() | FlowRow::GUESSED } else { direction.index() };
            if tables.open_flow(&key, &FlowRow { seen: now, opener, tcp_flags: flags }) {
                Some(opener)
            } else {
                tables.count_reason(Reason::FlowTableFull);
                None
            }
        }
    };
    let opener = found?;
    if facts.fragment.is_marked() && !matches!(facts.transport, Transport::Portless) {
        key.ports = 0;
        let _ = tables.open_flow(&key, &FlowRow { seen: now, opener, tcp_flags: 0 });
    }
    Some(Opener(opener))
}

/// What opens a connection opens another one when the old one has ended, or was only guessed from an answer.
#[inline(always)]
const fn is_new(row: &FlowRow, facts: &Facts) -> bool {
    // The first part of any other ICMP message: it has no port, and is no part of what went before.
    if facts.fragment.is_marked() && matches!(facts.transport, Transport::Icmp) && asked(facts).0 == 0 {
        return true;
    }
    let opens = facts.tcp_flags as u32 & (SYN | ACK) == SYN || is_echo_request(facts);
    opens && (row.tcp_flags & (FIN | RST) != 0 || row.opener & FlowRow::GUESSED != 0)
}

#[inline(always)]
fn key(direction: Direction, ifindex: u32, facts: &Facts) -> FlowKey {
    let (source, destination) = match facts.transport {
        Transport::Ports => (facts.source_port as u32, facts.destination_port as u32),
        Transport::Icmp => asked(facts),
        Transport::Portless => (0, 0),
    };
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

/// Echoes of either side are connections of their own: who asks has 1 for a port, who is asked 2.
#[inline(always)]
const fn asked(facts: &Facts) -> (u32, u32) {
    if is_echo_request(facts) {
        (1, 2)
    } else if is_echo_reply(facts) {
        (2, 1)
    } else {
        (0, 0)
    }
}
