// Package ways has what the Go clients share: the ways in, and how each client tells how it went.
package ways

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"time"
)

// Way is one way in: a listener, and what to show there.
type Way struct {
	Name, Servers, Authority, Certificate, Mechanism, User, Password string
}

// TLS is the configuration of TLS; nil where there is none.
func (w Way) TLS() (*tls.Config, error) {
	if w.Authority == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(w.Authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if w.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(w.Certificate, w.Certificate)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Try takes a JSON list of ways from standard input. It says, for each, a JSON line with its name and what was read, or
// why the client was kept out.
func Try(through func(context.Context, Way) ([]string, error)) {
	var all []Way
	if err := json.NewDecoder(os.Stdin).Decode(&all); err != nil {
		panic(err)
	}
	for _, way := range all {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		found, err := through(ctx, way)
		cancel()
		line := map[string]any{"name": way.Name, "read": found, "error": ""}
		if err != nil {
			line["error"] = err.Error()
		}
		json.NewEncoder(os.Stdout).Encode(line)
	}
}
