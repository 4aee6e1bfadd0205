//! A web server (RFC 9112) and curl as its client. In: two namespaces and paths. Out: the status, if one came.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use crate::netns::NetNs;

/// Bytes of a page: several segments, so that the server's kernel sends them as one packet.
const PAGE: usize = 100_000;

/// A server that has the same page at every path, until it is dropped.
#[derive(Debug)]
pub struct WebServer {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WebServer {
    /// Listens on port 80 of `address` in `netns`.
    ///
    /// # Errors
    /// When the address is not there, or taken.
    pub fn start(netns: &NetNs, address: &str) -> Result<Self> {
        let address = SocketAddr::new(address.parse()?, 80);
        let listener = netns.enter(move || Ok(TcpListener::bind(address)?))?;
        listener.set_nonblocking(true)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    // A client that is cut off is no matter of the server.
                    Ok((stream, _)) => drop(std::thread::spawn(move || answer(&stream))),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Ok(Self { address, stopping, thread: Some(thread) })
    }

    /// The status that `client` is told when it gets all of the page within two seconds.
    ///
    /// # Errors
    /// When curl cannot be run.
    pub fn get(&self, client: &NetNs, path: &str) -> Result<Option<u16>> {
        let url = format!("http://{}{path}", self.address);
        let words =
            ["curl", "-sS", "--noproxy", "*", "-g", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}", &url];
        let output = client.run(&words)?;
        let code = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0);
        Ok((output.status.success() && code > 0).then_some(code))
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(stream: &TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = BufReader::new(stream).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let page = "x".repeat(PAGE);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page.len());
    let mut stream = stream;
    Ok(stream.write_all((head + &page).as_bytes())?)
}
