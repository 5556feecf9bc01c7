{{/* What encrypts checks, and the names of the certificate. */}}

{{/* Whether the port for checks has a certificate. */}}
{{- define "countersign-ext-authz.servesTls" -}}
{{- if or .Values.tls.existingSecret .Values.tls.certManager.enabled }}true{{ end -}}
{{- end }}

{{/* The Secret with tls.crt and tls.key. */}}
{{- define "countersign-ext-authz.tlsSecretName" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "countersign.fullname" .)) -}}
{{- end }}

{{/* The host of the Service, which is also a name of the certificate. */}}
{{- define "countersign-ext-authz.serviceHost" -}}
{{- printf "%s.%s.svc" (include "countersign.fullname" .) .Release.Namespace -}}
{{- end }}

{{/* The Secret or ConfigMap with the CA of the certificate, for `helm test`. Empty for a CA that the image trusts. */}}
{{- define "countersign-ext-authz.checkCa" -}}
{{- $tls := .Values.tls -}}
{{- $ca := $tls.ca -}}
{{- if and $tls.certManager.enabled $tls.certManager.includesCa (not (include "countersign.hasCa" $ca)) -}}
{{- $ca = dict "existingSecret" (include "countersign-ext-authz.tlsSecretName" .) "existingConfigMap" "" "key" "ca.crt" -}}
{{- end -}}
{{- toYaml $ca -}}
{{- end }}

{{/* Fails if nothing is said about the clear text of a Service, or if values of TLS contradict each other. */}}
{{- define "countersign-ext-authz.checkTls" -}}
{{- $tls := .Values.tls }}
{{- $serves := include "countersign-ext-authz.servesTls" . }}
{{- $hasClients := include "countersign.hasCa" $tls.clientCa }}
{{- if and (include "countersign-ext-authz.usesSocket" .) (or $serves $hasClients (include "countersign.hasCa" $tls.ca) (ne $tls.mode "serve")) }}
  {{- fail "tls is set, but the sidecar listens on a Unix socket, whose checks need no encryption: remove tls" }}
{{- end }}
{{- if and (ne $tls.mode "serve") (or $serves $hasClients (include "countersign.hasCa" $tls.ca)) }}
  {{- fail (printf "tls.mode is %s, so the sidecar accepts clear text, but tls.existingSecret, tls.certManager, tls.ca or tls.clientCa is set: set tls.mode to serve, or remove the others" $tls.mode) }}
{{- end }}
{{- if not (or $serves (ne $tls.mode "serve") (include "countersign-ext-authz.usesSocket" .)) }}
  {{- fail "a choice is required: checks contain the tokens of agents, and other pods can reach the port for checks. Set tls.existingSecret to a Secret of type kubernetes.io/tls (for a trial: countersign-check-tls, which the chart countersign makes), or tls.certManager.enabled to true. To accept clear text, set tls.mode to mesh (a service mesh encrypts it) or to insecure (nothing does)" }}
{{- end }}
{{- if and $tls.existingSecret $tls.certManager.enabled }}
  {{- fail "tls.existingSecret and tls.certManager.enabled are both set: set one of them" }}
{{- end }}
{{- if and $tls.certManager.enabled (not $tls.certManager.issuerRef.name) }}
  {{- fail "tls.certManager.enabled is true: set tls.certManager.issuerRef.name to the name of an Issuer or ClusterIssuer" }}
{{- end }}
{{- $needsCertificate := and .Values.tests.controlPlaneUrl $hasClients }}
{{- if and $needsCertificate (not .Values.tests.clientCertificate.existingSecret) }}
  {{- fail "tls.clientCa is set, so the check of `helm test` needs a certificate too: set tests.clientCertificate.existingSecret to a Secret of type kubernetes.io/tls, or tests.controlPlaneUrl to an empty text" }}
{{- end }}
{{- if and .Values.tests.clientCertificate.existingSecret (not $needsCertificate) }}
  {{- fail "tests.clientCertificate.existingSecret is set, but `helm test` does not use it: set tls.clientCa and tests.controlPlaneUrl, too, or remove it" }}
{{- end }}
{{- include "countersign.checkCa" (list "tls.ca" $tls.ca) }}
{{- include "countersign.checkCa" (list "tls.clientCa" $tls.clientCa) }}
{{- end }}
