//! Tells the neighbours who has an address now. In: device and address. Out: gratuitous ARP (RFC 5227 section 3)
//! or an unsolicited neighbour advertisement (RFC 4861 section 7.2.6), three times, unless the address is given up meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use podwire_core::wire::{WireError, arp, checksum, ethernet, icmpv6, ipv6, ndp};

use crate::error::{Context, Error};
use crate::sys::FrameSocket;

/// Pauses after the first one: a switch that learns late, and a neighbour that missed it, hear the others.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// Message and option of a neighbour advertisement.
const ADVERTISEMENT_LEN: usize = 32;

/// An address on a device, by its ifindex.
pub(crate) type Place = (u32, IpAddr);

/// Which addresses are ours to announce, each with the turn in which it was taken: what was given up, or has been
/// taken anew, is not announced by an earlier turn, which would draw packets away from whoever has it now.
#[derive(Debug, Default)]
pub(crate) struct Announcer {
    turn: u64,
    held: Arc<Mutex<BTreeMap<Place, u64>>>,
}

impl Announcer {
    /// Announces at once, and later without keeping the caller; what cannot be sent is a line in the log.
    ///
    /// # Errors
    /// No socket can be opened; or no thread started: the neighbours were told once.
    pub(crate) fn announce(
        &mut self,
        ifindex: u32,
        mac: [u8; 6],
        addresses: Vec<IpAddr>,
    ) -> Result<(), Error> {
        self.turn += 1;
        let (turn, held) = (self.turn, Arc::clone(&self.held));
        lock(&held).extend(addresses.iter().map(|address| ((ifindex, *address), turn)));
        // One socket for all: closing one waits for every processor, which nobody who gives an address up shall.
        let socket =
            FrameSocket::open(ifindex).context(|| "opening the socket that announces addresses".into())?;
        addresses.iter().for_each(|address| send(&socket, mac, *address));
        let repeat = move || {
            for pause in PAUSES {
                std::thread::sleep(pause);
                for address in &addresses {
                    // Kept while it is sent: who forgets an address may be sure that nothing follows.
                    let held = lock(&held);
                    if held.get(&(ifindex, *address)) == Some(&turn) {
                        send(&socket, mac, *address);
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("announce".into())
            .spawn(repeat)
            .map(drop)
            .context(|| "starting the thread that announces addresses".into())
    }

    /// Announces nothing any more but these.
    pub(crate) fn keep_only(&self, wish: &BTreeSet<Place>) {
        lock(&self.held).retain(|place, _| wish.contains(place));
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        lock(&self.held).clear();
    }
}

fn lock(held: &Mutex<BTreeMap<Place, u64>>) -> MutexGuard<'_, BTreeMap<Place, u64>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(socket: &FrameSocket, mac: [u8; 6], address: IpAddr) {
    let sent = frame(mac, address)
        .map_err(|error| error.to_string())
        .and_then(|frame| socket.send(&frame).map_err(|error| error.to_string()));
    if let Err(error) = sent {
        tracing::debug!(%address, error, "an address could not be announced");
    }
}

fn frame(mac: [u8; 6], address: IpAddr) -> Result<Vec<u8>, WireError> {
    match address {
        IpAddr::V4(address) => {
            let mut frame = vec![0; ethernet::HEADER_LEN + arp::LEN];
            let header = ethernet::Header {
                destination: [0xff; 6],
                source: mac,
                ether_type: ethernet::ETHER_TYPE_ARP,
            };
            let at = header.write(&mut frame)?;
            let ip = address.octets();
            let message = arp::Header {
                operation: arp::REQUEST,
                sender_mac: mac,
                sender_ip: ip,
                target_mac: [0; 6],
                target_ip: ip,
            };
            message.write(&mut frame[at..])?;
            Ok(frame)
        }
        IpAddr::V6(address) => advertisement(mac, address.octets()),
    }
}

fn advertisement(mac: [u8; 6], address: [u8; 16]) -> Result<Vec<u8>, WireError> {
    let [a, b, c, d, e, f] = mac;
    let options = [ndp::option::TARGET_LINK_LAYER, 1, a, b, c, d, e, f];
    let message = ndp::Message::NeighbourAdvertisement { flags: ndp::FLAG_OVERRIDE, target: address };
    let mut bytes = [0; ADVERTISEMENT_LEN];
    ndp::Header { message, checksum: 0, options: &options }.write(&mut bytes)?;
    let pseudo = checksum::pseudo_v6(address, ALL_NODES, ICMPV6, ADVERTISEMENT_LEN as u32);
    let checksum = pseudo.add_bytes(&bytes).checksum();
    bytes[icmpv6::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());

    let mut frame =
        ethernet::Header { destination: ALL_NODES_MAC, source: mac, ether_type: ethernet::ETHER_TYPE_IPV6 }
            .bytes()
            .to_vec();
    let [high, low] = (ADVERTISEMENT_LEN as u16).to_be_bytes();
    frame.extend([0x60, 0, 0, 0, high, low, ICMPV6, HOP_LIMIT]);
    debug_assert_eq!(frame.len(), ethernet::HEADER_LEN + ipv6::SOURCE_OFFSET);
    frame.extend(address);
    frame.extend(ALL_NODES);
    frame.extend(bytes);
    Ok(frame)
}

/// Next header ICMPv6.
const ICMPV6: u8 = 58;
/// Any other shows that a router passed it on (RFC 4861 section 7.1.2).
const HOP_LIMIT: u8 = 255;
