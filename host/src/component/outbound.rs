//! A component's way out: HTTP requests and sockets to the hosts that its manifest allows, and to no
//! others.

use std::net::SocketAddr;
use std::sync::Arc;

use http::uri::Scheme;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::sockets::SocketAddrUse;
use wasmtime_wasi_http::{
    Error as HttpError, RequestOptions, Result as HttpResult, WasiBody, WasiHttpHooks,
    default_send_request,
};

use crate::app::outbound::AllowedHosts;

/// Gives a component the sockets that it may have.
pub fn allow_sockets(wasi: &mut WasiCtxBuilder, hosts: &Arc<AllowedHosts>) {
    // Without being allowed, there are none.
    if hosts.is_empty() {
        return;
    }
    let hosts = hosts.clone();
    wasi.allow_ip_name_lookup(true).allow_tcp(true).allow_udp(true);
    wasi.socket_addr_check(move |address, usage| {
        let allowed = may_use(&hosts, address, usage);
        Box::pin(std::future::ready(allowed))
    });
}

fn may_use(hosts: &AllowedHosts, address: SocketAddr, usage: SocketAddrUse) -> bool {
    match usage {
        // What precedes a connection: any port of the system's choice.
        SocketAddrUse::TcpBind | SocketAddrUse::UdpBind => address.port() == 0,
        SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => false,
        _ => hosts.allow_address(address),
    }
}

/// What happens to the HTTP requests that a component sends.
pub struct Outbound {
    /// The component's id.
    pub component: Arc<str>,
    /// Where they may go.
    pub hosts: Arc<AllowedHosts>,
}

type Processed = Box<dyn Future<Output = HttpResult<()>> + Send>;

impl WasiHttpHooks for Outbound {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Processed,
    ) -> Box<dyn Future<Output = HttpResult<(http::Response<WasiBody>, Processed)>> + Send> {
        if !self.allows(request.uri()) {
            return Box::new(std::future::ready(Err(HttpError::HttpRequestDenied)));
        }
        Box::new(async move {
            let (response, connection) = default_send_request(request, options).await?;
            let body = http_body_util::BodyExt::boxed_unsync;
            Ok((response.map(body), Box::new(connection) as Processed))
        })
    }
}

impl Outbound {
    fn allows(&self, uri: &http::Uri) -> bool {
        let scheme = uri.scheme().unwrap_or(&Scheme::HTTPS).as_str();
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(if scheme == "http" { 80 } else { 443 });
        let allowed = self.hosts.allow(scheme, host, port);
        if !allowed {
            let component = &self.component;
            tracing::warn!(
                %component,
                "refused a request to {host}:{port}: allow it with allowed_outbound_hosts = \
                 [\"{scheme}://{host}:{port}\"]"
            );
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_connected_and_never_listen() {
        let hosts = AllowedHosts::parse(["*://10.0.0.1:5432"]).unwrap();
        let may = |address: &str, usage| may_use(&hosts, address.parse().unwrap(), usage);
        assert!(may("10.0.0.1:5432", SocketAddrUse::TcpConnect));
        assert!(may("10.0.0.1:5432", SocketAddrUse::UdpSend));
        assert!(!may("10.0.0.1:80", SocketAddrUse::TcpConnect));
        assert!(!may("10.0.0.2:5432", SocketAddrUse::TcpConnect));
        assert!(may("0.0.0.0:0", SocketAddrUse::TcpBind));
        assert!(!may("10.0.0.1:5432", SocketAddrUse::TcpBind));
        assert!(!may("0.0.0.0:0", SocketAddrUse::TcpListen));
    }

    #[test]
    fn requests_go_where_they_may() {
        let hosts = AllowedHosts::parse(["http://a.example:8080", "https://b.example"]).unwrap();
        let outbound = Outbound { component: "c".into(), hosts: Arc::new(hosts) };
        let allows = |uri: &str| outbound.allows(&uri.parse().unwrap());
        assert!(allows("http://a.example:8080/x") && allows("https://b.example/y?z"));
        assert!(!allows("http://a.example/x") && !allows("https://a.example:8080"));
        assert!(!allows("http://b.example") && !allows("https://c.example"));
        assert!(!allows("https://b.example:443@c.example/") && !allows("/only/a/path"));
    }
}
