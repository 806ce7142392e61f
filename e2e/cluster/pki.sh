# Keys and certificates of one cluster, and a kubeconfig for each of its parts. Sourced by up.sh.

PKI="$RUN/pki"

# certificate NAME SUBJECT [NAMES]: a key and a certificate signed by the cluster's own authority.
certificate() {
  local name=$1 subject=$2 names=${3:-}
  openssl ecparam -genkey -name prime256v1 -noout -out "$PKI/$name.key"
  openssl req -new -key "$PKI/$name.key" -subj "$subject" -out "$PKI/$name.csr"
  openssl x509 -req -in "$PKI/$name.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 365 \
    -out "$PKI/$name.crt" -extfile <(
      printf 'extendedKeyUsage=serverAuth,clientAuth\n'
      [ -z "$names" ] || printf 'subjectAltName=%s\n' "$names"
    )
  rm "$PKI/$name.csr"
}

# kubeconfig NAME FILE: access to the API server for the owner of NAME's certificate.
kubeconfig() {
  local name=$1 file=$2
  cat > "$file" << END
apiVersion: v1
kind: Config
current-context: grpo
contexts: [{name: grpo, context: {cluster: grpo, user: $name}}]
clusters: [{name: grpo, cluster: {server: "https://$NODE_IP:6443", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}}]
users: [{name: $name, user: {client-certificate-data: $(base64 -w0 "$PKI/$name.crt"), client-key-data: $(base64 -w0 "$PKI/$name.key")}}]
END
  chmod 600 "$file"
}

make_pki() {
  mkdir -p "$PKI"
  openssl ecparam -genkey -name prime256v1 -noout -out "$PKI/ca.key"
  openssl req -x509 -new -key "$PKI/ca.key" -subj /CN=grpo-cluster -days 365 -out "$PKI/ca.crt"
  openssl genrsa -out "$PKI/service-accounts.key" 2048
  openssl rsa -in "$PKI/service-accounts.key" -pubout -out "$PKI/service-accounts.pub"
  certificate apiserver /CN=kube-apiserver \
    "IP:$NODE_IP,IP:$API_SERVICE_IP,IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.$DOMAIN"
  certificate kubelet "/O=system:nodes/CN=system:node:$NODE" "IP:$NODE_IP,DNS:$NODE"
  certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
  certificate front-proxy /CN=front-proxy-client
  certificate admin /O=system:masters/CN=grpo-admin
  certificate controller-manager /CN=system:kube-controller-manager
  certificate scheduler /CN=system:kube-scheduler
  certificate proxy /CN=system:kube-proxy
  certificate coredns /CN=system:coredns
  local part
  for part in kubelet controller-manager scheduler proxy coredns; do
    kubeconfig "$part" "$RUN/$part.kubeconfig"
  done
  kubeconfig admin "$CLUSTER_KUBECONFIG"
}
