//! How dressed packets leave. In: a batch, in the order of their records. Out: what became of each.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;

use podwire_core::abi::Reason;
use podwire_core::stage::copy::Outcome;
use podwire_core::wire::protocol;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use super::dress::Dressed;
use crate::sys;

/// A way out for dressed packets.
pub(crate) trait Carrier {
    /// Sends packets; each session's in the order that they have here. The answers stand in the same order: one that
    /// failed takes none of the others with it.
    fn give(&mut self, packets: &[Dressed]) -> Vec<Outcome>;
}

/// Raw sockets by outer family and protocol: the kernel writes the IP header, finds the route, resolves the neighbour
/// and cuts packets into fragments where it must.
pub(super) struct Sockets {
    mark: u32,
    open: HashMap<(bool, u8), Socket>,
}

impl Sockets {
    /// `mark`: what is sent carries it, so that it is never copied again.
    pub(super) fn new(mark: u32) -> Self {
        Self { mark, open: HashMap::new() }
    }

    fn socket(&mut self, v6: bool, protocol: u8) -> io::Result<&Socket> {
        Ok(match self.open.entry((v6, protocol)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(open(v6, protocol, self.mark)?),
        })
    }
}

impl Carrier for Sockets {
    fn give(&mut self, packets: &[Dressed]) -> Vec<Outcome> {
        self.give_some(&packets.iter().collect::<Vec<_>>())
    }
}

impl Sockets {
    /// [`Carrier::give`], of packets that do not lie side by side.
    pub(super) fn give_some(&mut self, packets: &[&Dressed]) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::Lost(Reason::SendFailed); packets.len()];
        let way = |packet: &Dressed| (packet.remote.is_ipv6(), packet.protocol);
        for key in
            [(false, protocol::UDP), (false, protocol::GRE), (true, protocol::UDP), (true, protocol::GRE)]
        {
            let batch: Vec<usize> = (0..packets.len())
                .filter(|index| packets.get(*index).is_some_and(|one| way(one) == key))
                .collect();
            if batch.is_empty() {
                continue;
            }
            let messages: Vec<(SockAddr, &[u8])> = batch
                .iter()
                .filter_map(|index| packets.get(*index))
                .map(|packet| (SocketAddr::new(packet.remote, 0).into(), packet.payload()))
                .collect();
            let sent = match self.socket(key.0, key.1) {
                Ok(socket) => each_sent(messages.len(), |from| sys::send_batch(socket, &messages[from..])),
                Err(error) => vec![Some(reason(&error)); messages.len()],
            };
            for (index, lost) in batch.into_iter().zip(sent) {
                outcomes[index] = match lost {
                    None => {
                        let packet = &packets[index];
                        Outcome::Sent { bytes: packet.bytes(), truncated: packet.truncated }
                    }
                    Some(reason) => Outcome::Lost(reason),
                };
            }
        }
        outcomes
    }
}

/// Sends all of `count` messages by calls that each send some from an index on, and says of each why it was lost. A call
/// that fails has failed with its first message: the kernel says so only when that is the first.
fn each_sent(count: usize, mut send: impl FnMut(usize) -> io::Result<usize>) -> Vec<Option<Reason>> {
    let mut outcomes = Vec::with_capacity(count);
    while outcomes.len() < count {
        match send(outcomes.len()) {
            Ok(sent) => outcomes.extend(std::iter::repeat_n(None, sent.clamp(1, count - outcomes.len()))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => outcomes.push(Some(reason(&error))),
        }
    }
    outcomes
}

fn open(v6: bool, protocol: u8, mark: u32) -> io::Result<Socket> {
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(protocol))))?;
    // It only sends: a program that takes nothing keeps the node's own traffic out of its queue.
    const RETURN_NOTHING: u16 = 0x06;
    socket.attach_filter(&[SockFilter::new(RETURN_NOTHING, 0, 0, 0)])?;
    socket.set_mark(mark)?;
    sys::allow_fragments(&socket, v6)?;
    Ok(socket)
}

fn reason(error: &io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => Reason::NoRoute,
        io::ErrorKind::NetworkDown => Reason::DeviceDown,
        _ => Reason::SendFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that sends at most three at a time and refuses some.
    fn kernel(refused: &'static [usize], calls: &mut Vec<usize>) -> impl FnMut(usize) -> io::Result<usize> {
        move |from| {
            calls.push(from);
            if refused.contains(&from) {
                return Err(io::ErrorKind::NetworkUnreachable.into());
            }
            let end = (from + 1..from + 3).find(|index| refused.contains(index)).unwrap_or(from + 3);
            Ok(end - from)
        }
    }

    #[test]
    fn a_failed_message_takes_no_other_with_it() {
        let mut calls = Vec::new();
        let outcomes = each_sent(8, kernel(&[0, 4, 5], &mut calls));
        let lost: Vec<usize> = (0..8).filter(|index| outcomes[*index].is_some()).collect();
        assert_eq!(lost, [0, 4, 5]);
        assert_eq!(outcomes[4], Some(Reason::NoRoute));
        assert_eq!(calls, [0, 1, 4, 5, 6], "no message is offered twice once it was sent");
    }

    #[test]
    fn an_interrupted_call_is_made_again() {
        let mut tries = 0;
        let outcomes = each_sent(2, |_| {
            tries += 1;
            if tries == 1 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(2) }
        });
        assert_eq!(outcomes, [None, None]);
    }
}
