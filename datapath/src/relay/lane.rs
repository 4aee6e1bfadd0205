//! AF_XDP as a way out. In: dressed packets. Out: those whose way is known, past the kernel's stack; the rest by raw
//! sockets.
//!
//! Frames sent so meet no queueing discipline, no egress program and no packet filter of the node. The lane is
//! therefore used only on an uplink that has neither programs at its egress hook nor a discipline that shapes nor
//! somebody who listens, for packets that fit it, to neighbours that the kernel knows.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use podwire_core::abi::Reason;
use podwire_core::stage::copy::Outcome;
use podwire_core::wire::{checksum, ethernet, ipv4};

use super::carrier::{Carrier, Sockets};
use super::dress::Dressed;
use crate::error::Error;
use crate::netdev::Netdev;
use crate::sys;
use crate::xsk::{Copying, Frame, Pool, Port};

/// How long what is known of the uplink and the neighbours holds.
const FRESH: Duration = Duration::from_millis(500);
/// How long packets wait for room in the device's queue.
const PUSH: Duration = Duration::from_millis(5);
/// Packets on their way at once.
const BUFFERS: u32 = 1024;
/// Queueing disciplines that neither shape nor choose.
const PLAIN: [&str; 6] = ["noqueue", "mq", "pfifo_fast", "fq_codel", "fq", "pfifo"];

/// Sends by AF_XDP where the uplink allows, else by raw sockets.
pub(super) struct Uplink {
    name: Option<String>,
    sockets: Sockets,
    netdev: Option<Netdev>,
    lane: Option<Lane>,
    looked: Option<Instant>,
    ways: HashMap<IpAddr, Option<[u8; 6]>>,
    /// The identification of the next IPv4 packet.
    id: u16,
}

/// The uplink's socket.
struct Lane {
    pool: Pool,
    port: Port,
    ifindex: u32,
    mac: [u8; 6],
    mtu: u32,
}

impl Uplink {
    /// `name`: the uplink, if there is one.
    pub(super) fn new(name: Option<String>, mark: u32) -> Self {
        Self {
            name,
            sockets: Sockets::new(mark),
            netdev: None,
            lane: None,
            looked: None,
            ways: HashMap::new(),
            id: 0,
        }
    }

    /// Looks at the uplink and forgets the neighbours, when it was long ago.
    fn refresh(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < FRESH) {
            return;
        }
        self.looked = Some(Instant::now());
        self.ways.clear();
        let Some(name) = self.name.clone() else { return };
        if self.netdev.is_none() {
            self.netdev = Netdev::open().ok();
        }
        let Some(netdev) = &self.netdev else { return };
        let link = netdev.links().ok().and_then(|mut links| links.remove(&name));
        let link = link.filter(|link| link.up && link.carrier && is_plain(netdev, &name, link.index));
        match (link, &self.lane) {
            (None, _) => self.lane = None,
            (Some(link), Some(lane))
                if (lane.ifindex, lane.mac, lane.mtu) == (link.index, link.mac, link.mtu) => {}
            (Some(link), _) => {
                // One socket at a time on the queue.
                self.lane = None;
                self.lane = Lane::open(&name, link.index, link.mac, link.mtu)
                    .inspect_err(|error| tracing::debug!(%error, "packets leave by raw sockets"))
                    .ok();
            }
        }
    }

    /// The next hop's address on the link.
    fn way(&mut self, remote: IpAddr) -> Option<[u8; 6]> {
        let (lane, netdev) = (self.lane.as_ref()?, self.netdev.as_ref()?);
        *self.ways.entry(remote).or_insert_with(|| {
            let route = netdev.route(remote).filter(|route| route.ifindex == lane.ifindex)?;
            // Nobody else keeps the neighbour fresh.
            netdev.probe_neighbour(route.ifindex, route.next_hop);
            netdev.neighbour_mac(route.next_hop)
        })
    }
}

/// Whether nobody wants to see what leaves.
fn is_plain(netdev: &Netdev, name: &str, ifindex: u32) -> bool {
    let plain = |kind: &String| PLAIN.contains(&kind.as_str());
    !sys::has_egress_programs(ifindex)
        && !is_listened_to(name)
        && netdev.disciplines(ifindex).is_ok_and(|kinds| !kinds.is_empty() && kinds.iter().all(plain))
}

/// Whether somebody listens to all that passes a device (`tcpdump`): frames of AF_XDP would not be heard.
fn is_listened_to(name: &str) -> bool {
    // Type, device (none for every device), function.
    let taps = std::fs::read_to_string("/proc/thread-self/net/ptype").unwrap_or_default();
    taps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|words| match words.as_slice() {
        ["ALL", device, _] => *device == name,
        ["ALL", _] => true,
        _ => false,
    })
}

impl Carrier for Uplink {
    fn give(&mut self, packets: &[Dressed]) -> Vec<Outcome> {
        self.refresh();
        let ways: Vec<_> = packets.iter().map(|packet| self.way(packet.remote)).collect();
        let fits = |packet: &Dressed| {
            self.lane.as_ref().is_some_and(|lane| packet.packet.len() <= lane.mtu as usize)
        };
        // A session's packets of one batch go one way, so that they stay in order.
        let apart: HashSet<u32> = packets
            .iter()
            .zip(&ways)
            .filter(|(packet, way)| way.is_none() || !fits(packet))
            .map(|(packet, _)| packet.session)
            .collect();
        let mut outcomes = vec![Outcome::Lost(Reason::SendFailed); packets.len()];
        let mut rest = Vec::new();
        for (index, (packet, way)) in packets.iter().zip(&ways).enumerate() {
            let taken = !apart.contains(&packet.session)
                && way.is_some_and(|mac| {
                    self.id = self.id.wrapping_add(1);
                    self.lane.as_mut().is_some_and(|lane| lane.push(packet, mac, self.id))
                });
            if taken {
                outcomes[index] = Outcome::Sent { bytes: packet.bytes(), truncated: packet.truncated };
            } else {
                rest.push(index);
            }
        }
        if let Some(lane) = &mut self.lane {
            let down = lane.flush().err();
            lose(&mut outcomes, lane.port.take_refused() as usize, Reason::SendFailed);
            // A device that is down takes no more: what is left is lost with the socket.
            if let Some(left) = down {
                lose(&mut outcomes, left, Reason::DeviceDown);
                self.lane = None;
            }
        }
        if !rest.is_empty() {
            let left: Vec<&Dressed> = rest.iter().map(|index| &packets[*index]).collect();
            for (index, outcome) in rest.iter().zip(self.sockets.give_some(&left)) {
                outcomes[*index] = outcome;
            }
        }
        outcomes
    }
}

/// So many of those that the lane took, the last ones, did not leave.
fn lose(outcomes: &mut [Outcome], count: usize, reason: Reason) {
    let given = outcomes.iter_mut().rev().filter(|outcome| matches!(outcome, Outcome::Sent { .. }));
    given.take(count).for_each(|outcome| *outcome = Outcome::Lost(reason));
}

impl Lane {
    fn open(name: &str, ifindex: u32, mac: [u8; 6], mtu: u32) -> Result<Self, Error> {
        let frame = mtu + ethernet::HEADER_LEN as u32;
        // Frames of several buffers go by sockets.
        let pool = Pool::take(BUFFERS, 4096)?;
        let port = Port::open(&pool, name, 0, Copying::Copy, frame.min(pool.room()))?;
        let mtu = mtu.min(pool.room() - ethernet::HEADER_LEN as u32);
        Ok(Self { pool, port, ifindex, mac, mtu })
    }

    /// Puts a packet into the queue; `false` when there is no room.
    fn push(&mut self, packet: &Dressed, mac: [u8; 6], id: u16) -> bool {
        let mut frame = Vec::with_capacity(ethernet::HEADER_LEN + packet.packet.len());
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&self.mac);
        let ether_type =
            if packet.remote.is_ipv6() { ethernet::ETHER_TYPE_IPV6 } else { ethernet::ETHER_TYPE_IPV4 };
        frame.extend_from_slice(&ether_type.to_be_bytes());
        frame.extend_from_slice(&packet.packet);
        if packet.remote.is_ipv4() {
            number(&mut frame[ethernet::HEADER_LEN..], id);
        }
        let until = Instant::now() + PUSH;
        loop {
            if let Some(frame) = self.pool.write(&frame) {
                let mut one = vec![frame];
                if self.port.send(&mut self.pool, &mut one) == 1 {
                    return true;
                }
                one.into_iter().for_each(|frame: Frame| self.pool.free(frame));
            }
            if Instant::now() >= until || self.flush().is_err() {
                return false;
            }
        }
    }

    /// Has the kernel send what is in the queue; what a busy device does not take at once goes with the next ones.
    ///
    /// # Errors
    /// The device is down or gone; this many of the last packets are not sent.
    fn flush(&mut self) -> Result<(), usize> {
        let until = Instant::now() + PUSH;
        loop {
            let sent = self.port.flush();
            self.port.reap(&mut self.pool);
            match (sent, self.port.unsent()) {
                (_, 0) => return Ok(()),
                (Err(_), left) => return Err(left),
                (Ok(_), _) if Instant::now() >= until => return Ok(()),
                (Ok(_), _) => {}
            }
        }
    }
}

/// Gives an IPv4 packet its identification (RFC 6864).
fn number(packet: &mut [u8], id: u16) {
    let read =
        |packet: &[u8], at: usize| packet.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (Some(old), Some(sum)) = (read(packet, ipv4::ID_OFFSET), read(packet, ipv4::CHECKSUM_OFFSET)) else {
        return;
    };
    packet[ipv4::ID_OFFSET..][..2].copy_from_slice(&id.to_be_bytes());
    let sum = checksum::update(sum, old, id);
    packet[ipv4::CHECKSUM_OFFSET..][..2].copy_from_slice(&sum.to_be_bytes());
}
