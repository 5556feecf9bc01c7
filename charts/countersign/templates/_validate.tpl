{{/* Fails if values contradict each other, with the value to set. The schema checks each value alone. */}}
{{- define "countersign.validate" -}}
{{- include "countersign.checkSettings" (list . (dict
  "public_url" "set publicUrl"
  "data_dir" "set persistence"
  "listen" "set listenAddress. The ports of the pods are fixed, and service.apiPort and service.syncPort are those of the Service"
  "tls" "set tls"
  "secrets" "set masterKey"
  "proxies" "set trustedProxies"
  "database.url" "set database.existingSecret"
  "redis.url" "set redis.existingSecret")) }}
{{- $replicas := ternary .Values.autoscaling.maxReplicas .Values.replicaCount .Values.autoscaling.enabled | int -}}
{{- $issuers := dig "humans" "issuers" dict .Values.settings -}}
{{- if include "countersign.usesSqlite" . }}
  {{- if gt $replicas 1 }}
    {{- fail (printf "replicaCount or autoscaling.maxReplicas is %d, but only one control plane can use SQLite: set database.type to postgresql, or replicaCount to 1 and autoscaling.enabled to false" $replicas) }}
  {{- end }}
  {{- if .Values.database.existingSecret }}
    {{- fail "database.existingSecret is set, but database.type is sqlite: set database.type to postgresql" }}
  {{- end }}
  {{- if include "countersign.hasCa" .Values.database.ca }}
    {{- fail "database.ca is set, but database.type is sqlite: set database.type to postgresql, or remove database.ca" }}
  {{- end }}
  {{- if and .Values.backup.enabled (eq .Values.persistence.accessMode "ReadWriteOncePod") }}
    {{- fail "backup.enabled is true, but persistence.accessMode is ReadWriteOncePod: only the control plane can use such a volume, and no backup job. Set persistence.accessMode to ReadWriteOnce, or backup.enabled to false" }}
  {{- end }}
  {{- if .Values.migrations.hook }}
    {{- fail "migrations.hook needs database.type postgresql: a job cannot use the volume of SQLite before the upgrade. Set migrations.hook to false; the control plane migrates at its start" }}
  {{- end }}
{{- else }}
  {{- if not .Values.database.existingSecret }}
    {{- fail "database.type is postgresql: set database.existingSecret to the name of a Secret whose key `url` contains postgres://USER:PASSWORD@HOST/DATABASE" }}
  {{- end }}
  {{- if not .Values.masterKey.existingSecret }}
    {{- fail "database.type is postgresql: set masterKey.existingSecret to the name of a Secret whose key `master-key` contains 32 bytes in hex (openssl rand -hex 32)" }}
  {{- end }}
  {{- if not $issuers }}
    {{- fail "database.type is postgresql: set settings.humans.issuers to the OIDC issuer of your human users. The operator key, which signs their tokens otherwise, works with SQLite only" }}
  {{- end }}
  {{- if .Values.backup.enabled }}
    {{- fail "backup.enabled copies a SQLite database, but database.type is postgresql: set backup.enabled to false, and back up PostgreSQL with its own tools" }}
  {{- end }}
{{- end }}
{{- if and (gt $replicas 1) (not .Values.redis.existingSecret) (not .Values.redis.notUsed) }}
  {{- fail "several control planes without Redis count rate limits separately, so the limits are multiplied: set redis.existingSecret to the name of a Secret whose key `url` contains redis://…, or redis.notUsed to true" }}
{{- end }}
{{- if and .Values.masterKey.previousSecret (not .Values.masterKey.existingSecret) }}
  {{- fail "masterKey.previousSecret is set: set masterKey.existingSecret to the name of the Secret with the new master key" }}
{{- end }}
{{- if and (include "countersign.hasCa" .Values.redis.ca) (not .Values.redis.existingSecret) }}
  {{- fail "redis.ca is set, but no Redis is used: set redis.existingSecret to the name of a Secret whose key `url` contains rediss://…, or remove redis.ca" }}
{{- end }}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled }}
  {{- fail "tls.existingSecret and tls.certManager.enabled are both set: set one of them" }}
{{- end }}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) }}
  {{- fail "tls.certManager.enabled is true: set tls.certManager.issuerRef.name to the name of an Issuer or ClusterIssuer" }}
{{- end }}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.includesService) (not .Values.clientUrl) (eq .Values.tls.mode "serve") }}
  {{- fail "tls.certManager.includesService is false, so the certificate is not valid for the name of the Service: set clientUrl to the URL of publicUrl, at which the pods of `helm test` and of `apply` then reach the API" }}
{{- end }}
{{- if and (include "countersign.hasCa" .Values.tls.ca) (not .Values.tls.existingSecret) (not .Values.tls.certManager.enabled) }}
  {{- fail "tls.ca is set, but the chart makes a certificate of its own CA: set tls.existingSecret or tls.certManager.enabled, or remove tls.ca" }}
{{- end }}
{{- if and (eq .Values.tls.mode "terminated") (not .Values.trustedProxies) }}
  {{- fail "tls.mode is terminated: set trustedProxies to the networks (CIDR) of the proxies that terminate TLS. The API rejects all other requests" }}
{{- end }}
{{- if and (eq .Values.tls.mode "terminated") (not .Values.publicUrl) (not .Values.clientUrl) }}
  {{- fail "tls.mode is terminated: set publicUrl to the https:// URL at which clients reach the proxies. The pods of the chart use it too, unless clientUrl is set" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.publicUrl) }}
  {{- fail "ingress.enabled is true: set publicUrl to the https:// URL at which agents reach the Ingress" }}
{{- end }}
{{- range $route := list "httpRoute" "tlsRoute" }}
{{- $values := get $.Values.gateway $route }}
{{- if and $values.enabled (not $values.parentRefs) (not $.Values.gateway.parentRefs) }}
  {{- fail (printf "gateway.%s.enabled is true: set gateway.parentRefs or gateway.%s.parentRefs to the Gateway that the route attaches to" $route $route) }}
{{- end }}
{{- end }}
{{- if and .Values.gateway.httpRoute.enabled (not .Values.publicUrl) }}
  {{- fail "gateway.httpRoute.enabled is true: set publicUrl to the https:// URL at which agents reach the Gateway" }}
{{- end }}
{{- if and .Values.gateway.tlsRoute.enabled (not .Values.gateway.tlsRoute.syncHostname) (not .Values.gateway.tlsRoute.apiHostname) }}
  {{- fail "gateway.tlsRoute.enabled is true: set gateway.tlsRoute.apiHostname, gateway.tlsRoute.syncHostname or both" }}
{{- end }}
{{- if and .Values.gateway.httpRoute.enabled (eq .Values.tls.mode "serve") (ne (include "countersign.clientCa" . | fromYaml).key "ca.crt") }}
  {{- fail "gateway.httpRoute.enabled is true: a Gateway reads the CA of the API from the key ca.crt only. Set tls.ca.key to ca.crt" }}
{{- end }}
{{- include "countersign.checkMetadata" . }}
{{- include "countersign.checkMetricsFrom" . }}
{{- include "countersign.checkIpFamilies" (list . "service") }}
{{- include "countersign.checkIpFamilies" (list . "syncService") }}
{{- if and (eq .Values.service.type "ClusterIP") (or .Values.service.apiNodePort .Values.service.syncNodePort) }}
  {{- fail "service.apiNodePort or service.syncNodePort is set, but service.type is ClusterIP: set service.type to NodePort or LoadBalancer" }}
{{- end }}
{{- include "countersign.checkCa" (list "database.ca" .Values.database.ca) }}
{{- include "countersign.checkCa" (list "redis.ca" .Values.redis.ca) }}
{{- include "countersign.checkCa" (list "tls.ca" .Values.tls.ca) }}
{{- include "countersign.checkImage" (list . "image") }}
{{- include "countersign.checkImage" (list . "cliImage") }}
{{- end }}
