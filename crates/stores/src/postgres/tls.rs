//! Encrypted connections, as libpq knows them: `require` encrypts and asks for no proof, or for one when a root certificate
//! is named; `verify-ca` asks that a root certificate has signed the server's; `verify-full` asks that it is made out to
//! the host as well.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use longhaul_queue::{Error, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};

use super::url::{Proof, TlsOptions};

/// What newer servers ask a client to name.
const PROTOCOL: &[u8] = b"postgresql";

/// Makes encrypted connections of the sockets of one store.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the root certificates, where the URL names a file.
    pub(super) fn new(options: &TlsOptions) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = options.root_file.as_deref().map(read_roots).transpose()?;
        let check = match roots {
            Some(roots) => Some(Check::new(roots, &provider, options.proof == Proof::Host)?),
            None if options.proof == Proof::None => None,
            None => {
                return Err(Error::invalid(
                    "sslmode=verify-ca and verify-full need the server's root certificate; add sslrootcert=FILE to the \
                     store URL",
                ));
            }
        };
        let verifier = Arc::new(Verifier { provider: Arc::clone(&provider), check });
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| Error::invalid(format!("TLS cannot be used: {error}")))?;
        let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

fn read_roots(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let cannot = |error: &dyn std::fmt::Display| {
        Error::invalid(format!(
            "sslrootcert {} cannot be read: {error}; name a file with certificates in PEM form",
            path.display()
        ))
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| cannot(&error))?;
    let roots: Vec<_> = certificates.collect::<Result<_, _>>().map_err(|error| cannot(&error))?;
    if roots.is_empty() {
        return Err(cannot(&"it has no certificate"));
    }
    Ok(roots)
}

/// Whom to believe.
#[derive(Debug)]
struct Check {
    signed: Arc<WebPkiServerVerifier>,
    /// A server may also show one of these very certificates: one that it signed itself.
    roots: Vec<CertificateDer<'static>>,
    /// The certificate must name the host.
    host: bool,
}

impl Check {
    fn new(roots: Vec<CertificateDer<'static>>, provider: &Arc<CryptoProvider>, host: bool) -> Result<Self> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().cloned());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider)).build();
        let signed = verifier.map_err(|error| {
            Error::invalid(format!("sslrootcert has no certificate that can be used: {error}"))
        })?;
        Ok(Self { signed, roots, host })
    }

    fn verify(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        if self.roots.iter().any(|root| root.as_ref() == shown.as_ref()) {
            if self.host {
                rustls::client::verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
            }
            return Ok(());
        }
        match self.signed.verify_server_cert(shown, between, name, &[], now) {
            Ok(_) => Ok(()),
            // Names are looked at last: the signatures are good.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.host => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    check: Option<Check>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(check) = &self.check {
            check.verify(shown, between, name, now)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Why the server is not spoken to. Not an error of the socket: time does not heal it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(rustls::Error);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = TlsStream<S>;
    type TlsConnect = Handshake;
    type Error = BoxError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, BoxError> {
        Ok(Handshake { config: Arc::clone(&self.0), name: ServerName::try_from(host.to_owned()) })
    }
}

/// A connection that is about to be encrypted.
pub(super) struct Handshake {
    config: Arc<ClientConfig>,
    /// Asked for when it comes to a handshake: the socket of this machine has none.
    name: Result<ServerName<'static>, InvalidDnsNameError>,
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = TlsStream<S>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TlsStream<S>, BoxError>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let connector = tokio_rustls::TlsConnector::from(self.config);
            match connector.connect(self.name?, stream).await {
                Ok(stream) => Ok(TlsStream(Box::new(stream))),
                Err(error) => match error.downcast::<rustls::Error>() {
                    Ok(refused) => Err(Refused(refused).into()),
                    Err(error) => Err(error.into()),
                },
            }
        })
    }
}

/// An encrypted connection.
pub(super) struct TlsStream<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> tokio_postgres::tls::TlsStream for TlsStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
