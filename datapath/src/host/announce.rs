//! Tells the neighbours who has an address now. In: device and address. Out: gratuitous ARP (RFC 5227 section 3)
//! or an unsolicited neighbour advertisement (RFC 4861 section 7.2.6), three times.

use std::net::IpAddr;
use std::time::Duration;

use podwire_core::wire::{WireError, arp, checksum, ethernet, icmpv6, ipv6, ndp};

use crate::error::{Context, Error};
use crate::sys;

/// Pauses before each: a switch that learns late, and a neighbour that missed the first, hear the others.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(2)];
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// Message and option of a neighbour advertisement.
const ADVERTISEMENT_LEN: usize = 32;

/// Announces without keeping the caller; what cannot be sent is a line in the log.
///
/// # Errors
/// No thread can be started.
pub(crate) fn announce(ifindex: u32, mac: [u8; 6], addresses: Vec<IpAddr>) -> Result<(), Error> {
    // A thread starts in the network namespace of the one who starts it.
    let speak = move || {
        for pause in PAUSES {
            std::thread::sleep(pause);
            for address in &addresses {
                let sent = frame(mac, *address)
                    .map_err(|error| error.to_string())
                    .and_then(|frame| sys::send_frame(ifindex, &frame).map_err(|error| error.to_string()));
                if let Err(error) = sent {
                    tracing::debug!(%address, error, "an address could not be announced");
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("announce".into())
        .spawn(speak)
        .map(drop)
        .context(|| "starting the thread that announces addresses".into())
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
