{{/* The settings file of the sidecar. */}}
{{- define "countersign-ext-authz.config" -}}
{{- $settings := deepCopy .Values.settings }}
{{- $sync := dict "urls" .Values.syncUrls }}
{{- if include "countersign.hasCa" .Values.ca }}
{{- $_ := set $sync "ca" "/ca/ca.crt" }}
{{- end }}
{{- $_ := set $settings "sync" (merge $sync ($settings.sync | default dict)) }}
{{- if .Values.copy.enabled }}
{{- $_ := set $settings "copy" (merge (dict "directory" "/copy") ($settings.copy | default dict)) }}
{{- end }}
{{- $address := ternary "unix:/run/countersign/authz.sock" (include "countersign.listenAddress" (list . 9191)) (eq (include "countersign-ext-authz.usesSocket" .) "true") }}
{{- /* The admin port does not listen on loopback, because the kubelet and Prometheus connect from outside the pod. */}}
{{- $_ := set $settings "listen" (dict "grpc" $address "admin" (include "countersign.listenAddress" (list . 9092))) }}
{{- if eq (include "countersign-ext-authz.servesTls" .) "true" }}
{{- $files := dict "certificate" "/tls/tls.crt" "private_key" "/tls/tls.key" }}
{{- $clients := ternary (dict "client_ca" "/client-ca/ca.crt") dict (eq (include "countersign.hasCa" .Values.tls.clientCa) "true") }}
{{- $_ := set $settings "tls" (merge $files $clients) }}
{{- else if not (include "countersign-ext-authz.usesSocket" .) }}
{{- $_ := set $settings "tls" (dict "mode" .Values.tls.mode) }}
{{- end }}
{{- if .Values.rules }}
{{- $_ := set $settings "rules" (dict "file" "/rules/rules.toml") }}
{{- end }}
{{- include "countersign.settings" $settings | trim }}
{{- end }}
