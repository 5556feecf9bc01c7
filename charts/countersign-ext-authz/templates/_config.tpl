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
{{- /* A port that other pods can reach needs a word about its clear text, unless the settings have a certificate. */}}
{{- if not (or (include "countersign-ext-authz.usesSocket" .) $settings.tls) }}
{{- $_ := set $settings "tls" (dict "mode" "insecure") }}
{{- end }}
{{- if .Values.rules }}
{{- $_ := set $settings "rules" (dict "file" "/rules/rules.toml") }}
{{- end }}
{{- include "countersign.settings" $settings | trim }}
{{- end }}
