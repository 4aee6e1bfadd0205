//! Datagrams with a DSCP value and ports of one's own choice, in a pod's name.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::netns::NetNs;

/// A flow of datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Tagged {
    /// Where they go.
    pub destination: IpAddr,
    /// Their source port.
    pub source_port: u16,
    /// Their destination port.
    pub port: u16,
    /// Their DSCP value.
    pub tag: u8,
}

impl Tagged {
    /// A connected socket of a namespace; it stays there.
    ///
    /// # Errors
    /// When the port is taken, or there is no route.
    pub fn open(&self, netns: &NetNs) -> Result<UdpSocket> {
        let flow = *self;
        netns.enter(move || {
            let any: IpAddr = if flow.destination.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
            let socket = UdpSocket::bind(SocketAddr::new(any, flow.source_port)).context("binding")?;
            let tos = i32::from(flow.tag) << 2;
            if flow.destination.is_ipv4() {
                setsockopt(&socket, sockopt::Ipv4Tos, &tos)?;
            } else {
                setsockopt(&socket, sockopt::Ipv6TClass, &tos)?;
            }
            socket.connect(SocketAddr::new(flow.destination, flow.port)).context("connecting")?;
            Ok(socket)
        })
    }
}
