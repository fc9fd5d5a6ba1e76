"""The whole story on a real server: a draft as its trainer left it, the fault named, the printed remedy applied."""
