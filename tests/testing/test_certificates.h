// Certificates that a test makes for itself, with OpenSSL's library.
#ifndef BATON_TESTS_TESTING_TEST_CERTIFICATES_H_
#define BATON_TESTS_TESTING_TEST_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

#include "common/base/check.h"

namespace baton::testing {

struct CertificateFiles {
  std::string cert;
  std::string key;
};

// A CA whose certificates are for "localhost" and 127.0.0.1. P-256 keys, which are quick to make.
class TestCa {
 public:
  // Writes NAME.pem into `directory`.
  TestCa(const std::string& directory, const std::string& name)
      : directory_(directory), name_(name), key_(EVP_EC_gen("P-256")) {
    cert_ = Make(name, key_, /*seconds=*/3600, nullptr, nullptr);
    Save(PathOf(name + ".pem"), [this](FILE* file) { return PEM_write_X509(file, cert_); });
  }
  ~TestCa() {
    X509_free(cert_);
    EVP_PKEY_free(key_);
  }
  TestCa(const TestCa&) = delete;
  TestCa& operator=(const TestCa&) = delete;

  std::string ca() const { return PathOf(name_ + ".pem"); }

  // Writes NAME.pem and NAME.key. Valid from an hour ago to `seconds` from now; negative: expired.
  CertificateFiles Issue(const std::string& name, int seconds = 3600) const {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* cert = Make(name, key, seconds, cert_, key_);
    const CertificateFiles files = {PathOf(name + ".pem"), PathOf(name + ".key")};
    Save(files.cert, [cert](FILE* file) { return PEM_write_X509(file, cert); });
    Save(files.key, [key](FILE* file) {
      return PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    });
    X509_free(cert);
    EVP_PKEY_free(key);
    return files;
  }

 private:
  std::string PathOf(const std::string& file) const { return directory_ + "/" + file; }

  template <class Write>
  static void Save(const std::string& path, Write write) {
    // Renamed, so that readers see a whole file.
    FILE* file = std::fopen((path + ".tmp").c_str(), "w");
    BATON_CHECK(file != nullptr && write(file) == 1 && std::fclose(file) == 0) << path;
    BATON_CHECK(std::rename((path + ".tmp").c_str(), path.c_str()) == 0) << path;
  }

  static void Extend(X509* cert, X509* issuer, int id, const char* value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value);
    BATON_CHECK(extension != nullptr && X509_add_ext(cert, extension, -1) == 1) << value;
    X509_EXTENSION_free(extension);
  }

  // Self-signed without an issuer.
  static X509* Make(const std::string& name, EVP_PKEY* key, int seconds, X509* issuer,
                    EVP_PKEY* issuer_key) {
    static long serial = 0;
    X509* cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), seconds);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(issuer != nullptr ? issuer : cert));
    X509_set_pubkey(cert, key);
    if (issuer == nullptr) {
      Extend(cert, cert, NID_basic_constraints, "critical,CA:TRUE");
      Extend(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign");
    } else {
      Extend(cert, issuer, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    }
    BATON_CHECK(X509_sign(cert, issuer_key != nullptr ? issuer_key : key, EVP_sha256()) > 0);
    return cert;
  }

  const std::string directory_, name_;
  EVP_PKEY* const key_;
  X509* cert_ = nullptr;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_TEST_CERTIFICATES_H_
