//! TLS to the server, with the meanings that libpq gives to `sslmode`.
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::config::{ConfigError, Target, Verify};

/// What the pool uses to encrypt a connection.
pub fn connector(target: &Target) -> Result<MakeRustlsConnect, ConfigError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| ConfigError::Tls(error.to_string()))?;
    let builder = match target.verify {
        Verify::Full => builder.with_root_certificates(roots(target)?),
        Verify::Authority | Verify::Nothing => {
            let inner = if target.verify == Verify::Authority {
                let inner = WebPkiServerVerifier::builder_with_provider(
                    Arc::new(roots(target)?),
                    provider.clone(),
                )
                .build()
                .map_err(|error| ConfigError::Tls(error.to_string()))?;
                Some(inner)
            } else {
                None
            };
            let verifier = Arc::new(Lenient { inner, provider });
            builder
                .dangerous()
                .with_custom_certificate_verifier(verifier)
        }
    };
    let config = match (&target.certificate, &target.key) {
        (Some(certificate), Some(key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|error| ConfigError::Certificates(name(certificate), error.to_string()))?,
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(ConfigError::HalfCertificate),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let failed = |error: String| ConfigError::Certificates(name(path), error);
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| failed(reason(error)))?
        .collect();
    let found = found.map_err(|error| failed(reason(error)))?;
    if found.is_empty() {
        return Err(failed("there is none".to_owned()));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| ConfigError::Key(name(path), reason(error)))
}

fn reason(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "there is none, or it has a password".to_owned(),
        other => other.to_string(),
    }
}

/// What to do about a connection that failed, if it failed because of a certificate.
pub fn hint(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error
            .downcast_ref::<std::io::Error>()
            .and_then(|error| error.get_ref())
            .and_then(|error| error.downcast_ref::<Error>());
        if let Some(error) = inner.or_else(|| error.downcast_ref::<Error>()) {
            return match error {
                Error::InvalidCertificate(error) => Some(certificate_hint(error)),
                Error::AlertReceived(_) => Some(
                    "The server refused the certificate of the console, or it asks for one: check sslcert and sslkey.",
                ),
                _ => None,
            };
        }
        cause = error.source();
    }
    None
}

fn certificate_hint(error: &CertificateError) -> &'static str {
    match error {
        CertificateError::UnknownIssuer => {
            "No authority of sslrootcert has signed the certificate of the server."
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "The certificate of the server is for other names than that of the connection string. \
             Names have to be in its subjectAltName. sslmode=verify-ca does not compare them."
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "The certificate of the server has expired."
        }
        error if error.to_string().contains("CaUsedAsEndEntity") => {
            "The certificate of the server is that of an authority. Make one for the server, and sign it with that authority."
        }
        _ => "Check the certificate of the server, and sslrootcert.",
    }
}

/// The authorities of `sslrootcert`, or else those of the system.
fn roots(target: &Target) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    match &target.root_certificates {
        Some(path) if path.as_os_str() != "system" => {
            for certificate in certificates(path)? {
                roots
                    .add(certificate)
                    .map_err(|error| ConfigError::Certificates(name(path), error.to_string()))?;
            }
        }
        _ => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let system = "the system".to_owned();
        return Err(ConfigError::Certificates(
            system,
            "there is none".to_owned(),
        ));
    }
    Ok(roots)
}

/// Accepts what libpq accepts without `verify-full`: certificates for another name, and without
/// `inner` any certificate.
#[derive(Debug)]
struct Lenient {
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else {
            return Ok(ServerCertVerified::assertion());
        };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
